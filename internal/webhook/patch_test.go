// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/idempotency-dev/operator/internal/inject"
	"github.com/idempotency-dev/operator/internal/inject/injecttest"
)

const injectionCases = "../inject/testdata/in"

// TestPatch: applied to the raw pod, the patch makes what inject made of the typed one, and everything that only the raw pod has is still there.
func TestPatch(t *testing.T) {
	for _, c := range injecttest.Cases(t, injectionCases) {
		t.Run(c.Name, func(t *testing.T) { checkPatch(t, c.Sidecar(t), c.Pod) })
	}
}

// FuzzPatch holds the same over arbitrary pods that a policy could select, which have labels.
func FuzzPatch(f *testing.F) {
	for _, c := range injecttest.Cases(f, injectionCases) {
		f.Add([]byte(c.Pod))
	}
	s := inject.FromPolicy(injecttest.Policy(), injecttest.DefaultImage)
	f.Fuzz(func(t *testing.T, raw []byte) {
		if pod, err := decode(raw); err == nil && len(pod.Labels) > 0 {
			checkPatch(t, s, raw)
		}
	})
}

func checkPatch(t *testing.T, s inject.Sidecar, raw []byte) {
	t.Helper()
	before, err := decode(raw)
	if err != nil {
		return
	}
	after, err := inject.Pod(s, before)
	if err != nil {
		return
	}
	operations, err := patchOf(before, after)
	if err != nil {
		t.Fatal(err)
	}
	patched := apply(t, raw, operations)
	got, err := decode(patched)
	if err != nil {
		t.Fatalf("the patched pod cannot be read: %v", err)
	}
	if want, got := reencode(t, after), reencode(t, got); want != got {
		t.Errorf("the patched pod is not the injected one (-want +got):\n%s", cmp.Diff(want, got))
	}
	if diff := cmp.Diff(unknown(t, raw), unknown(t, patched)); diff != "" {
		t.Errorf("unknown fields changed (-want +got):\n%s", diff)
	}
}

// decoder reads pods as the handler does.
var decoder = sync.OnceValue(func() admission.Decoder { return admission.NewDecoder(clientgoscheme.Scheme) })

func decode(raw []byte) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	return pod, decoder().DecodeRaw(runtime.RawExtension{Raw: raw}, pod)
}

func apply(t *testing.T, raw []byte, operations any) []byte {
	t.Helper()
	encoded, err := json.Marshal(operations)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch(encoded)
	if err != nil {
		t.Fatal(err)
	}
	patched, err := patch.Apply(raw)
	if err != nil {
		t.Fatalf("apply %s: %v", encoded, err)
	}
	return patched
}

func reencode(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	encoded, err := json.MarshalIndent(pod, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

// unknown returns, by where they are, the members whose name begins with "future". Elements of lists are told apart by their
// name, since their place in the list may change; ports by their place, since name and number may.
func unknown(t *testing.T, raw []byte) map[string]string {
	t.Helper()
	var document any
	if err := json.Unmarshal(raw, &document); err != nil {
		t.Fatal(err)
	}
	return collect("", document)
}

func collect(path string, value any) map[string]string {
	found := map[string]string{}
	switch value := value.(type) {
	case map[string]any:
		for member, inner := range value {
			if strings.HasPrefix(member, "future") {
				found[path+"/"+member] = fmt.Sprint(inner)
				continue
			}
			maps.Copy(found, collect(path+"/"+member, inner))
		}
	case []any:
		for i, inner := range value {
			identity := any("")
			if object, ok := inner.(map[string]any); ok {
				identity = object["name"]
				if _, ok := object["containerPort"]; ok {
					identity = i
				}
			}
			maps.Copy(found, collect(fmt.Sprintf("%s/[%v]", path, identity), inner))
		}
	}
	return found
}

// TestPatchKeepsUnknownFields makes sure that the case with unknown fields has them at every level that is changed.
func TestPatchKeepsUnknownFields(t *testing.T) {
	for _, c := range injecttest.Cases(t, injectionCases) {
		if c.Name == "unknown-fields" {
			if found := unknown(t, c.Pod); len(found) != 11 {
				t.Errorf("%d unknown fields, want 11: %v", len(found), found)
			}
			return
		}
	}
	t.Error("no case named unknown-fields")
}

// TestPatchRefusesRemovals: an injection removes and moves nothing that is not its own. Should that change, the patch must not guess.
func TestPatchRefusesRemovals(t *testing.T) {
	pod := func(names ...string) *corev1.Pod {
		p := &corev1.Pod{}
		for _, name := range names {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name})
		}
		return p
	}
	for _, row := range []struct {
		why           string
		before, after *corev1.Pod
	}{
		{"the last element is gone", pod("a", "b"), pod("a")},
		{"an element moved behind a new one", pod("a", "b"), pod("b", "a", "c")},
		{"an element is gone and two are new", pod("a", "b"), pod("b", "c", "d")},
	} {
		if patch, err := patchOf(row.before, row.after); err == nil {
			t.Errorf("%s: got the patch %v", row.why, patch)
		}
	}
}
