// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/proxy"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// loopback is an address that belongs to one pod of one test.
func loopback() string {
	return fmt.Sprintf("127.%d.%d.%d", 2+rand.N(250), rand.N(256), 1+rand.N(254))
}

// runs makes the API server say that a pod runs at an address.
func (w *world) runs(pod *corev1.Pod, ip string) {
	w.t.Helper()
	running := pod.DeepCopy()
	running.Status.Phase, running.Status.PodIPs, running.Status.PodIP = corev1.PodRunning, []corev1.PodIP{{IP: ip}}, ip
	if err := server.client.Status().Patch(w.t.Context(), running, client.MergeFrom(pod)); err != nil {
		w.t.Fatal(err)
	}
}

// sidecarOn is a real sidecar at an address, and the file that the kubelet brings to it.
func (w *world) sidecarOn(ip, document string) (file string) {
	w.t.Helper()
	dir := w.t.TempDir()
	file = filepath.Join(dir, proxyconfig.File)
	deliver(w.t, file, document)
	deliver(w.t, filepath.Join(dir, "dsn"), "not looked at")
	ctx, stop := context.WithCancel(context.Background())
	listening := make(chan struct{})
	settings := proxy.Settings{
		ConfigFile: file, DSNFile: filepath.Join(dir, "dsn"), Upstream: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}, Listen: ip + ":0", Admin: ip + ":15601",
		Spool: filepath.Join(dir, "spool"), DrainTimeout: time.Second, Limits: proxy.DefaultLimits(), Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Listening: func(net.Addr, net.Addr) { close(listening) },
	}
	var running sync.WaitGroup
	running.Go(func() {
		// A sidecar without a store serves, too.
		open := func(context.Context, proxyconfig.Config, string) (keystore.Store, string, error) {
			return nil, "", keystore.ErrDSNInvalid
		}
		if err := proxy.Run(ctx, settings, open); err != nil {
			w.t.Errorf("sidecar: %v", err)
			close(listening)
		}
	})
	w.t.Cleanup(func() { stop(); running.Wait() })
	<-listening
	return file
}

// edit changes a policy as its author does.
func (w *world) edit(p *v1alpha1.IdempotencyPolicy, patch string) {
	w.t.Helper()
	if err := server.client.Patch(w.t.Context(), p, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		w.t.Fatal(err)
	}
}

// deliver replaces a file as the kubelet does: whole.
func deliver(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

func TestConfigured(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := w.ready("payments", nil)
	w.await("payments", v1alpha1.ConditionConfigured, metav1.ConditionTrue, v1alpha1.ReasonNoPods)

	first, ip := w.configMap("payments").Data[configKey], loopback()
	file := w.sidecarOn(ip, first)
	w.runs(w.injectedPod("one", p, sidecarImage), ip)
	w.await("payments", v1alpha1.ConditionConfigured, metav1.ConditionTrue, v1alpha1.ReasonCurrent)

	// Ready waits for the kubelet.
	w.edit(p, `{"spec":{"routes":[{"name":"a","methods":["POST"],"path":"/x"}]}}`)
	if message := w.await("payments", v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonProgressing); !strings.Contains(message, "1 of 1") {
		t.Errorf("the message %q does not count", message)
	}
	w.seen("payments", status.InProgressStatus)
	second := w.configMap("payments").Data[configKey]
	deliver(t, file, second)
	w.await("payments", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	if n := w.counts("payments").Configured; n != 1 {
		t.Errorf("%d sidecars are counted", n)
	}

	mute := w.injectedPod("mute", p, sidecarImage)
	w.runs(mute, loopback())
	if message := w.await("payments", v1alpha1.ConditionConfigured, metav1.ConditionUnknown, v1alpha1.ReasonSidecarsSilent); !strings.Contains(message, "1 of 2") || !strings.Contains(message, "idem-admin") {
		t.Errorf("the message %q says neither how many nor what to do", message)
	}
	w.remove(mute)
	w.await("payments", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)

	// A process cannot change its keyspace: this one cannot use what it is given.
	ip = loopback()
	file = w.sidecarOn(ip, strings.Replace(first, w.namespace+".payments", "another", 1))
	refusing := w.injectedPod("refusing", p, sidecarImage)
	w.runs(refusing, ip)
	w.await("payments", v1alpha1.ConditionConfigured, metav1.ConditionUnknown, v1alpha1.ReasonProgressing)
	deliver(t, file, second)
	w.await("payments", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonConfigRefused)
	w.remove(refusing)
	w.await("payments", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// TestSidecarsAreAskedUntilTheySaySo counts the questions.
func TestSidecarsAreAskedUntilTheySaySo(t *testing.T) {
	var questions atomic.Int64
	var says atomic.Value
	says.Store(`{"revision":"old"}`)
	sidecar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		questions.Add(1)
		fmt.Fprint(w, says.Load())
	}))
	defer sidecar.Close()
	address := map[types.UID]string{"pod": sidecar.Listener.Addr().String()}
	name := types.NamespacedName{Namespace: "shop", Name: "payments"}
	s := NewSidecars()
	// drained is what both queues hold; nobody else empties them.
	drained := func(f func()) (asked, woken int) {
		done := make(chan struct{})
		go func() { defer close(done); f() }()
		for {
			select {
			case <-s.ask:
				asked++
			case <-s.wake:
				woken++
			case <-done:
				return asked, woken
			}
		}
	}
	round := func() (again time.Duration, woken int) {
		t.Helper()
		_, woken = drained(func() {
			result, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: name})
			if err != nil {
				t.Error(err)
			}
			again = result.RequeueAfter
		})
		return again, woken
	}
	expect := func(revision string, restored bool, want Told, news int) {
		t.Helper()
		var told Told
		asked, _ := drained(func() { told = s.Expect(t.Context(), name, revision, address, restored) })
		if told != want || asked != news {
			t.Errorf("told %+v, want %+v; %d times into the queue, want %d", told, want, asked, news)
		}
	}
	expect("new", false, Told{Unasked: 1}, 1)
	expect("new", false, Told{Unasked: 1}, 0)
	if again, woken := round(); again != askBehind || woken != 1 {
		t.Errorf("a sidecar that is behind is asked again in %s, and %d policies are woken", again, woken)
	}
	expect("new", false, Told{Behind: 1}, 0)
	if _, woken := round(); woken != 0 {
		t.Error("no news woke the policy")
	}
	says.Store(`{"revision":"old","refused":"new"}`)
	round()
	expect("new", false, Told{Refusing: 1}, 0)
	says.Store(`{"revision":"new"}`)
	if again, woken := round(); again != 0 || woken != 1 {
		t.Errorf("a sidecar that is current is asked again in %s, and %d policies are woken", again, woken)
	}
	expect("new", false, Told{Current: 1}, 0)
	before := questions.Load()
	if again, _ := round(); again != 0 || questions.Load() != before {
		t.Error("a sidecar that has said it is asked again")
	}
	expect("new", true, Told{Unasked: 1}, 1)
	round()
	expect("newer", false, Told{Behind: 1}, 1)

	sidecar.Close()
	for i, want := range []time.Duration{4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second, askSilent, askSilent} {
		if again, _ := round(); again != want {
			t.Errorf("after %d rounds of silence it is asked again in %s, not %s", i+1, again, want)
		}
	}
	expect("newer", false, Told{Silent: 1}, 0)
	address = nil
	expect("newer", false, Told{}, 0)
	if again, _ := round(); again != 0 {
		t.Error("a pod that is gone is asked")
	}
	s.Forget(name)
	if len(s.policies) != 0 {
		t.Error("a policy that is gone is remembered")
	}
}

// TestSidecarsAreNotTrusted lets something else answer than a sidecar.
func TestSidecarsAreNotTrusted(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	defer elsewhere.Close()
	never := make(chan struct{})
	defer close(never)
	for reason, answer := range map[string]http.HandlerFunc{
		"an older sidecar": http.NotFound,
		"a redirect":       func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) },
		"not JSON":         func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") },
		"no revision":      func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") },
		"a body without end": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"revision":"`+strings.Repeat("x", 1<<20))
		},
		"a header too large": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 64<<10)) },
		"silence": func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-never:
			}
		},
	} {
		server := httptest.NewServer(answer)
		if said, err := NewSidecars().askOne(t.Context(), server.Listener.Addr().String()); err == nil {
			t.Errorf("%s is taken for %+v", reason, said)
		} else if errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", reason, err)
		}
		server.Close()
	}
}
