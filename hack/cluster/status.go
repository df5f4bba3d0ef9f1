// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// status prints one line per component and the node as Kubernetes sees it.
func (n *node) status(ctx context.Context, out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "COMPONENT\tVERSION\tPID\tSTATE")
	healthy := true
	for _, p := range n.components().all() {
		pid, state := "-", "not running"
		if r, ok := readRecord(n.layout.record(p.name)); ok && r.alive() {
			pid, state = fmt.Sprint(r.PID), "healthy"
			if err := p.ready(ctx); err != nil {
				state = "unhealthy: " + strings.ReplaceAll(err.Error(), "\n", " ")
			}
		}
		healthy = healthy && state == "healthy"
		_, version, _ := strings.Cut(filepath.Base(filepath.Dir(p.argv[0])), "-")
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", p.name, version, pid, state)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if !healthy {
		return errors.New("not ready: run make cluster-up; logs are in " + filepath.Dir(n.layout.log("any")))
	}
	nodes, err := n.kubectl(ctx, "get", "nodes", "-o", "wide")
	if err != nil {
		return err
	}
	pods, err := n.kubectl(ctx, "get", "pods", "-A")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s\n\n%s\n\nexport KUBECONFIG=%s\n", nodes, pods, n.layout.kubeconfig())
	if _, err := n.kubectl(ctx, "wait", "--for=condition=Ready", "node/"+nodeName, "--timeout=1s"); err != nil {
		return fmt.Errorf("not ready: %w", err)
	}
	return nil
}
