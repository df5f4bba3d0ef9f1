// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

// healthScript is the one in docs/gitops.md, as Argo CD would find it.
func healthScript(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "gitops.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		var config struct{ Data map[string]string }
		if err := yaml.Unmarshal([]byte(block[1]), &config); err != nil {
			t.Errorf("a block is not YAML: %v\n%s", err, block[1])
		}
		if script := config.Data["resource.customizations.health.idempotency.dev_IdempotencyPolicy"]; script != "" {
			return script
		}
	}
	t.Fatal("there is no script")
	return ""
}

// argoHealth runs a script on an object, as Argo CD does.
func argoHealth(t *testing.T, script string, object map[string]any) (status, message string) {
	t.Helper()
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, open := range []lua.LGFunction{lua.OpenBase, lua.OpenTable, lua.OpenString} {
		state.Push(state.NewFunction(open))
		state.Call(0, 0)
	}
	state.SetGlobal("obj", toLua(state, object))
	if err := state.DoString(script); err != nil {
		t.Fatalf("run script: %v", err)
	}
	health, is := state.Get(-1).(*lua.LTable)
	if !is {
		t.Fatalf("the script returns %v", state.Get(-1))
	}
	return health.RawGetString("status").String(), health.RawGetString("message").String()
}

func toLua(state *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, element := range v {
			table.RawSetString(key, toLua(state, element))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, element := range v {
			table.Append(toLua(state, element))
		}
		return table
	case string:
		return lua.LString(v)
	case bool:
		return lua.LBool(v)
	case int64:
		return lua.LNumber(v)
	case float64:
		return lua.LNumber(v)
	}
	return lua.LNil
}

// argo waits until Argo CD sees the policy so.
func (w *world) argo(script, name, want, says string) {
	w.t.Helper()
	eventually(w.t, func() error {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("IdempotencyPolicy"))
		if err := server.client.Get(w.t.Context(), types.NamespacedName{Namespace: w.namespace, Name: name}, u); err != nil {
			return err
		}
		if status, message := argoHealth(w.t, script, u.Object); status != want || !strings.Contains(message, says) {
			return fmt.Errorf("Argo CD sees %s (%s), not %s", status, message, want)
		}
		return nil
	})
}

// TestArgoHealth takes a policy through everything that a GitOps tool tells apart.
func TestArgoHealth(t *testing.T) {
	t.Parallel()
	script, w := healthScript(t), makeWorld(t)
	p := w.policy("payments", nil)
	w.argo(script, "payments", "Progressing", "not looked at this version")
	w.run(clock.RealClock{}, false)
	w.argo(script, "payments", "Healthy", "takes effect once")

	mend := w.unreachable()
	w.nudge("payments")
	w.await("payments", v1alpha1.ConditionStoreHealthy, metav1.ConditionFalse, v1alpha1.ReasonUnreachable)
	w.argo(script, "payments", "Degraded", "Unreachable: The server does not answer")
	mend()
	w.argo(script, "payments", "Healthy", "")

	// A sidecar that has not taken up an edit.
	ip := loopback()
	w.sidecarOn(ip, w.configMap("payments").Data[configKey])
	w.runs(w.injectedPod("one", p, sidecarImage), ip)
	w.await("payments", v1alpha1.ConditionConfigured, metav1.ConditionTrue, v1alpha1.ReasonCurrent)
	w.edit(p, `{"spec":{"mode":"Audit"}}`)
	w.argo(script, "payments", "Progressing", "1 of 1 sidecars")

	w.policy("stuck", func(p *v1alpha1.IdempotencyPolicy) {
		p.Spec.Selector.MatchLabels = map[string]string{"app": "stuck"}
		p.Spec.Store.Postgres.DSNSecretRef.Name = "nowhere"
	})
	w.argo(script, "stuck", "Degraded", `SecretNotFound: there is no Secret "nowhere"`)
}
