// SPDX-License-Identifier: Apache-2.0

// Package docs checks that the documentation speaks of what is there.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// files calls visit with the path, from the root, and the text of every file of the repository with this ending.
func files(t *testing.T, ending string, visit func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != root && strings.HasPrefix(entry.Name(), ".") {
			return filepath.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(path, ending) {
			return nil
		}
		text, err := os.ReadFile(path)
		visit(strings.TrimPrefix(path, root+"/"), string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestNamedTestsExist: every test that a page gives as its witness is in the code.
func TestNamedTestsExist(t *testing.T) {
	declared := map[string]bool{}
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	files(t, "_test.go", func(_, text string) {
		for _, m := range declaration.FindAllStringSubmatch(text, -1) {
			declared[m[1]] = true
		}
	})
	named := 0
	reference := regexp.MustCompile("`(Test[A-Z]\\w+)`")
	files(t, ".md", func(path, text string) {
		for _, m := range reference.FindAllStringSubmatch(text, -1) {
			if named++; !declared[m[1]] {
				t.Errorf("%s names %s, which does not exist", path, m[1])
			}
		}
	})
	if named == 0 {
		t.Error("no page names a test: this test cannot fail")
	}
}

// TestLinksLeadSomewhere: every relative link of a page is to a file.
func TestLinksLeadSomewhere(t *testing.T) {
	seen := 0
	link := regexp.MustCompile(`\]\(([^)#\s]+)(#[^)\s]*)?\)`)
	files(t, ".md", func(path, text string) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], ":") {
				continue
			}
			seen++
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s links to %s, which does not exist", path, m[1])
			}
		}
	})
	if seen == 0 {
		t.Error("no page has a link: this test cannot fail")
	}
}
