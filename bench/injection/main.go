// SPDX-License-Identifier: Apache-2.0

// Command injection measures the injection webhook at work: a kube-apiserver creates pods at a steady rate in one namespace with thousands of
// policies, and every call that it makes to the webhook is timed where the webhook is served.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject/injecttest"
)

// config of a run.
type config struct {
	policies int
	rate     int // pods a second
	duration time.Duration
	warmUp   time.Duration // not counted
	target   float64       // milliseconds
	crd      string
	webhooks string
}

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench injection:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	c := config{warmUp: 5 * time.Second, target: 10, crd: filepath.Join("config", "crd", "bases"), webhooks: filepath.Join("config", "webhook", "manifests.yaml")}
	flags := flag.NewFlagSet("injection", flag.ContinueOnError)
	flags.IntVar(&c.policies, "policies", 5000, "policies, all in the namespace of the pods")
	flags.IntVar(&c.rate, "rate", 100, "pods a second")
	flags.DurationVar(&c.duration, "duration", 30*time.Second, "length of the measurement")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.policies < 1 || c.rate < 1 || int(c.duration.Seconds())*c.rate < 1000 {
		return errors.New("a run of fewer than 1000 pods, or without a policy, says nothing")
	}
	ctrl.SetLogger(logr.Discard())
	slog.SetDefault(slog.New(slog.DiscardHandler))
	b, err := start(ctx, c)
	if err != nil {
		return err
	}
	p99, err := b.measure(ctx, c, out)
	if err = errors.Join(err, b.stop()); err != nil {
		return err
	}
	verdict := "ok"
	if p99 > c.target {
		verdict = "short"
	}
	_, err = fmt.Fprintf(out, "figure injection.webhook.p99_ms %.2f target <=%g %s\n", p99, c.target, verdict)
	return err
}

// measure makes the policies, then pods, and returns the 99th percentile of the webhook's answers, in milliseconds.
func (b *bench) measure(ctx context.Context, c config, out io.Writer) (float64, error) {
	begin := time.Now()
	if err := b.fill(ctx, c.policies); err != nil {
		return 0, err
	}
	fmt.Fprintf(out, "%d policies in one namespace, after %s; %d processors\n", c.policies, time.Since(begin).Round(time.Second), runtime.GOMAXPROCS(0))
	if _, err := b.create(ctx, c, c.warmUp); err != nil {
		return 0, err
	}
	b.timer.reset()
	creations, err := b.create(ctx, c, c.duration)
	if err != nil {
		return 0, err
	}
	answers := b.timer.sorted()
	if len(answers) < len(creations) {
		return 0, fmt.Errorf("%d calls for %d pods: not every pod was asked about", len(answers), len(creations))
	}
	slices.Sort(creations)
	describe(out, "webhook", answers)
	describe(out, "creation of a pod, as its creator sees it", creations)
	return percentile(answers, 99), nil
}

// fill creates the policies and waits until the webhook knows them. One in ten selects by expressions, and one in a hundred by such
// as no index helps with: those are looked at for every pod.
func (b *bench) fill(ctx context.Context, count int) error {
	err := parallel(ctx, count, func(ctx context.Context, i int) error {
		p := injecttest.Policy()
		p.Namespace, p.Name = namespace, fmt.Sprintf("policy-%d", i)
		p.Spec.Selector.MatchLabels = map[string]string{"app": fmt.Sprintf("app-%d", i)}
		if i%10 == 0 {
			p.Spec.Selector = metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{fmt.Sprintf("app-%d", i)}},
			}}
		}
		if i%100 == 1 {
			p.Spec.Selector.MatchLabels = nil
			p.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: fmt.Sprintf("special-%d", i), Operator: metav1.LabelSelectorOpExists}}
		}
		return b.client.Create(ctx, p)
	})
	if err != nil {
		return fmt.Errorf("create policies: %w", err)
	}
	var list v1alpha1.IdempotencyPolicyList
	return poll(ctx, func() error {
		if err := b.cache.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
			return err
		}
		if len(list.Items) < count {
			return fmt.Errorf("the webhook knows %d of %d policies", len(list.Items), count)
		}
		return nil
	})
}

// create makes pods at the rate, each at its own time, whether or not those before it are done, and returns how long each took from the time at
// which it was due.
func (b *bench) create(ctx context.Context, c config, duration time.Duration) ([]time.Duration, error) {
	count := int(duration.Seconds() * float64(c.rate))
	took, errs := make([]time.Duration, count), make([]error, count)
	var group sync.WaitGroup
	tick := time.NewTicker(time.Second / time.Duration(c.rate))
	defer tick.Stop()
	for i := range count {
		due, app := <-tick.C, (i*37)%c.policies
		if app%100 == 1 {
			app++ // no pod has the special label
		}
		group.Go(func() {
			errs[i] = b.pod(ctx, fmt.Sprintf("app-%d", app))
			took[i] = time.Since(due)
		})
	}
	group.Wait()
	return took, errors.Join(errs...)
}

// pod creates one, as a ReplicaSet would, and looks for the sidecar.
func (b *bench) pod(ctx context.Context, app string) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: app + "-", Labels: map[string]string{
			"app": app, "app.kubernetes.io/name": app, "app.kubernetes.io/part-of": "shop", "app.kubernetes.io/version": "1", "pod-template-hash": "6d5f8",
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "app", Image: "registry.example.com/app:1", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
			Env: []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}, {Name: "C", Value: "3"}},
		}}},
	}
	if err := b.client.Create(ctx, pod); err != nil {
		return fmt.Errorf("create pod: %w", err)
	}
	if len(pod.Spec.InitContainers) != 1 {
		return errors.New("a pod was created without its sidecar")
	}
	return nil
}

func describe(out io.Writer, what string, sorted []time.Duration) {
	fmt.Fprintf(out, "%s: %d samples, p50 %.2f ms, p90 %.2f ms, p99 %.2f ms, highest %.2f ms\n",
		what, len(sorted), percentile(sorted, 50), percentile(sorted, 90), percentile(sorted, 99), percentile(sorted, 100))
}

// percentile of sorted samples, in milliseconds.
func percentile(sorted []time.Duration, p int) float64 {
	return float64(sorted[max(0, (len(sorted)*p+99)/100-1)]) / float64(time.Millisecond)
}
