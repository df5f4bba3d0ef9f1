// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// seenReasons are those that a test of this package has waited for, in the status of an object on an API server.
var seenReasons sync.Map

// unseenReasons are the reasons of api/v1alpha1/conditions.go that no such test has brought about, but for those that nothing here can.
func unseenReasons() ([]string, error) {
	elsewhere := map[string]string{
		"ProbeFailed": "what a store says that nobody foresaw",
		"DropOverdue": "takes an hour, or more partitions than one pass drops",
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", "api", "v1alpha1", "conditions.go"), nil, 0)
	if err != nil {
		return nil, fmt.Errorf("parse reasons: %w", err)
	}
	var unseen []string
	ast.Inspect(file, func(n ast.Node) bool {
		value, is := n.(*ast.ValueSpec)
		if !is || !strings.HasPrefix(value.Names[0].Name, "Reason") {
			return true
		}
		literal, is := value.Values[0].(*ast.BasicLit)
		if !is {
			return true
		}
		reason, err := strconv.Unquote(literal.Value)
		if _, seen := seenReasons.Load(reason); err == nil && !seen && elsewhere[reason] == "" {
			unseen = append(unseen, reason)
		}
		return true
	})
	return unseen, nil
}
