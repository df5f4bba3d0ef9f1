// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

const operatorNamespace = "idempotency-system"

// cluster is a Kubernetes cluster: typed reads through client, everything a user would type through kubectl.
type cluster struct {
	client     client.Client
	kubeconfig string
	kubectlBin string
}

func connect(ctx context.Context) (*cluster, error) {
	kubeconfig, err := hackCluster(ctx, "kubeconfig", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, fmt.Errorf("find a cluster: set KUBECONFIG or run make cluster-up: %w", err)
	}
	kubectl, _ := exec.LookPath("kubectl")
	kubectl, err = hackCluster(ctx, "kubectl", kubectl)
	if err != nil {
		return nil, fmt.Errorf("find kubectl: %w", err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS = -1 // as fast as the API server answers
	scheme := clientgoscheme.Scheme
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	return &cluster{client: c, kubeconfig: kubeconfig, kubectlBin: kubectl}, nil
}

// hackCluster asks the local cluster's own command for a path, unless one is known.
func hackCluster(ctx context.Context, what, known string) (string, error) {
	if known != "" {
		return known, nil
	}
	cmd := exec.CommandContext(ctx, "go", "run", "./cluster", what)
	cmd.Dir = root("hack")
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// kubectl runs it and returns what it printed; a failure holds what it said.
func (c *cluster) kubectl(ctx context.Context, args ...string) (string, error) {
	return c.kubectlWith(ctx, "", args...)
}

func (c *cluster) kubectlWith(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.kubectlBin, append([]string{"--kubeconfig", c.kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), nil
}

func (c *cluster) installOperator(ctx context.Context) error {
	manifests, err := c.kubectl(ctx, "kustomize", root("config", "default"))
	if err != nil {
		return err
	}
	for development, variable := range map[string]string{
		"docker.io/local/idempotency-manager:dev": "IMG", "docker.io/local/idempotency-proxy:dev": "PROXY_IMG",
	} {
		if image := os.Getenv(variable); image != "" {
			manifests = strings.ReplaceAll(manifests, development, image)
		}
	}
	if _, err := c.kubectlWith(ctx, manifests, "apply", "--server-side", "--force-conflicts", "-f", "-"); err != nil {
		return err
	}
	// The images of a development cluster keep their tag, so a manager that runs already may be an older one.
	if _, err := c.kubectl(ctx, "-n", operatorNamespace, "rollout", "restart", "deployment"); err != nil {
		return err
	}
	if _, err := c.kubectl(ctx, "-n", operatorNamespace, "rollout", "status", "deployment", "--timeout=180s"); err != nil {
		pods, _ := c.kubectl(ctx, "-n", operatorNamespace, "describe", "pods")
		logs, _ := c.kubectl(ctx, "-n", operatorNamespace, "logs", "--tail=50", "--all-containers", "-l", "app.kubernetes.io/name=idempotency-operator")
		return fmt.Errorf("%w\n%s\n%s", err, pods, logs)
	}
	return nil
}

// namespace makes a namespace that enforces the restricted Pod Security Standard and is opted in to injection.
// A namespace of that name left by an earlier run is removed first.
func (c *cluster) namespace(ctx context.Context, name string) error {
	if _, err := c.kubectl(ctx, "delete", "namespace", name, "--ignore-not-found", "--timeout=120s"); err != nil {
		return err
	}
	manifest := fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata:
  name: %s
  labels:
    idempotency.dev/injection: enabled
    pod-security.kubernetes.io/enforce: restricted
`, name)
	_, err := c.kubectlWith(ctx, manifest, "apply", "-f", "-")
	return err
}

// secret makes a Secret.
func (c *cluster) secret(ctx context.Context, namespace, name string, data map[string]string) error {
	return c.client.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, StringData: data})
}

// policy reads a policy.
func (c *cluster) policy(ctx context.Context, namespace, name string) (*v1alpha1.IdempotencyPolicy, error) {
	p := &v1alpha1.IdempotencyPolicy{}
	err := c.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, p)
	return p, err
}

// condition reports whether the policy has the condition with that status and reason; an empty reason is any.
func (c *cluster) condition(ctx context.Context, namespace, name, condition, status, reason string) error {
	p, err := c.policy(ctx, namespace, name)
	if err != nil {
		return err
	}
	for _, have := range p.Status.Conditions {
		if have.Type == condition {
			if string(have.Status) == status && (reason == "" || have.Reason == reason) {
				return nil
			}
			return fmt.Errorf("%s is %s/%s (%s), not %s/%s", condition, have.Status, have.Reason, have.Message, status, reason)
		}
	}
	return fmt.Errorf("%s has no condition %s; it has %v", name, condition, p.Status.Conditions)
}

// pods lists the pods with that label that are not being deleted.
func (c *cluster) pods(ctx context.Context, namespace, app string) ([]corev1.Pod, error) {
	list := &corev1.PodList{}
	if err := c.client.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{"app": app}); err != nil {
		return nil, err
	}
	var live []corev1.Pod
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			live = append(live, p)
		}
	}
	return live, nil
}

// ready waits for a Deployment, and says what stands in the way when it does not come.
func (c *cluster) ready(ctx context.Context, namespace, deployment string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	_, err := c.kubectl(ctx, "-n", namespace, "rollout", "status", "deployment/"+deployment, "--timeout=120s")
	if err == nil {
		return nil
	}
	describe, _ := c.kubectl(context.WithoutCancel(ctx), "-n", namespace, "describe", "pods")
	return errors.Join(err, errors.New(describe))
}
