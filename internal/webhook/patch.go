// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	corev1 "k8s.io/api/core/v1"

	"github.com/idempotency-dev/operator/internal/inject"
)

// patchOf returns the JSON patch that makes before into after, when applied to the raw object that before was decoded from.
//
// The raw object may hold fields that our types do not know. A patch made from two raw documents would drop them, and a generic
// list diff would shift one element's unknown fields to its neighbour; so elements keep their identity by name, and their order.
// An older sidecar in the place of the new one is replaced as a whole, since nothing in it is anybody else's.
func patchOf(before, after *corev1.Pod) ([]jsonpatch.Operation, error) {
	was, err := generic(before)
	if err != nil {
		return nil, err
	}
	is, err := generic(after)
	if err != nil {
		return nil, err
	}
	return diffMaps("", was, is)
}

func generic(pod *corev1.Pod) (map[string]any, error) {
	encoded, err := json.Marshal(pod)
	if err != nil {
		return nil, fmt.Errorf("encode pod: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.UseNumber()
	var decoded map[string]any
	if err := decoder.Decode(&decoded); err != nil {
		return nil, fmt.Errorf("decode pod: %w", err)
	}
	return decoded, nil
}

// diff compares one value. change sets the value where both differ as a whole: "add" for a member of an object, which the raw
// object may lack though our types spell it out, "replace" for an element of a list.
func diff(change, path string, before, after any) ([]jsonpatch.Operation, error) {
	if reflect.DeepEqual(before, after) {
		return nil, nil
	}
	switch after := after.(type) {
	case map[string]any:
		if before, ok := before.(map[string]any); ok {
			return diffMaps(path, before, after)
		}
	case []any:
		if before, ok := before.([]any); ok {
			return diffLists(path, before, after)
		}
	}
	return []jsonpatch.Operation{jsonpatch.NewOperation(change, path, after)}, nil
}

func diffMaps(path string, before, after map[string]any) ([]jsonpatch.Operation, error) {
	var patch []jsonpatch.Operation
	for _, member := range slices.Sorted(maps.Keys(before)) {
		if _, kept := after[member]; !kept {
			patch = append(patch, jsonpatch.NewOperation("remove", path+"/"+escape(member), nil))
		}
	}
	for _, member := range slices.Sorted(maps.Keys(after)) {
		operations, err := diff("add", path+"/"+escape(member), before[member], after[member])
		if err != nil {
			return nil, err
		}
		patch = append(patch, operations...)
	}
	return patch, nil
}

// diffLists compares lists of equal length element by element, and takes one of another length for the old one with named elements inserted.
// Only our own elements, and variables, are ever removed.
func diffLists(path string, before, after []any) ([]jsonpatch.Operation, error) {
	var patch []jsonpatch.Operation
	aligned := len(before) == len(after)
	next := 0
	for i := 0; i < len(after) || next < len(before); {
		at := path + "/" + strconv.Itoa(i)
		switch {
		case next < len(before) && !aligned && !holds(after[i:], before[next]):
			if !strings.HasSuffix(path, "/env") && !owned(path, before[next]) {
				return nil, fmt.Errorf("diff %s: element %d was removed", path, next)
			}
			patch = append(patch, jsonpatch.NewOperation("remove", at, nil))
			next++
			continue
		case next == len(before) || !aligned && name(before[next]) != name(after[i]):
			if holds(before[next:], after[i]) {
				return nil, fmt.Errorf("diff %s: element %d was moved", path, i)
			}
			patch = append(patch, jsonpatch.NewOperation("add", at, after[i]))
			i++
			continue
		}
		if owned(path, after[i]) && !reflect.DeepEqual(before[next], after[i]) {
			patch = append(patch, jsonpatch.NewOperation("replace", at, after[i]))
		} else {
			operations, err := diff("replace", at, before[next], after[i])
			if err != nil {
				return nil, err
			}
			patch = append(patch, operations...)
		}
		i, next = i+1, next+1
	}
	return patch, nil
}

func owned(path string, element any) bool {
	return inject.Owned(strings.TrimPrefix(path, "/spec/"), name(element))
}

func holds(list []any, element any) bool {
	return slices.ContainsFunc(list, func(other any) bool { return name(other) == name(element) })
}

func name(element any) string {
	object, _ := element.(map[string]any)
	text, _ := object["name"].(string)
	return text
}

// escape writes a member's name as a part of a JSON pointer (RFC 6901, section 3).
func escape(member string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(member)
}
