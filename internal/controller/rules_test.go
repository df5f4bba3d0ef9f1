// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"
)

// TestAlerts shows that each alert is about metrics that exist and labels that they have, and that its runbook is there and about it.
func TestAlerts(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "prometheus", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Spec struct {
			Groups []struct {
				Rules []struct {
					Alert, Expr, For string
					Annotations      struct{ Summary, Runbook string }
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	known := exported(NewCleanup(nil, nil, nil, clock.RealClock{}).Metrics())
	metric, label := regexp.MustCompile(`\bidempotency_[a-z_]+`), regexp.MustCompile(`\$labels\.([a-z]+)`)
	seen, runbooks := 0, []string{}
	for _, group := range rules.Spec.Groups {
		for _, rule := range group.Rules {
			seen++
			names := metric.FindAllString(rule.Expr, -1)
			if len(names) == 0 {
				t.Errorf("%s is about no metric of ours: %s", rule.Alert, rule.Expr)
			}
			runbook, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(rule.Annotations.Runbook)))
			if err != nil || rule.Annotations.Runbook == "" {
				t.Errorf("%s has no runbook: %v", rule.Alert, err)
			}
			runbooks = append(runbooks, filepath.Base(rule.Annotations.Runbook))
			for _, name := range names {
				labels, exists := known[name]
				if !exists {
					t.Errorf("%s is about %s, which nobody exports", rule.Alert, name)
				}
				if !strings.Contains(string(runbook), name) {
					t.Errorf("the runbook of %s says nothing of %s", rule.Alert, name)
				}
				for _, used := range label.FindAllStringSubmatch(rule.Annotations.Summary, -1) {
					if !slices.Contains(labels, used[1]) {
						t.Errorf("the summary of %s uses label %s, and %s has %v", rule.Alert, used[1], name, labels)
					}
				}
			}
			if rule.For == "" || rule.Annotations.Summary == "" {
				t.Errorf("%s says neither for how long nor what it is", rule.Alert)
			}
		}
	}
	if seen == 0 {
		t.Fatal("there are no alerts")
	}
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "runbooks", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if !slices.Contains(runbooks, filepath.Base(page)) {
			t.Errorf("no alert leads to %s", page)
		}
	}
}

// exported are the metrics of a collector, each with the names of its labels.
func exported(collector prometheus.Collector) map[string][]string {
	all := make(chan *prometheus.Desc, 100)
	collector.Describe(all)
	close(all)
	// A Desc tells its name in its text only.
	form, metrics := regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`), map[string][]string{}
	for desc := range all {
		if found := form.FindStringSubmatch(fmt.Sprint(desc)); found != nil {
			metrics[found[1]] = strings.Split(found[2], ",")
		}
	}
	return metrics
}
