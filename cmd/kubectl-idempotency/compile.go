// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/idempotency-dev/operator/internal/policy"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

func newCompile(s streams) *cobra.Command {
	var file policyFile
	var output string
	cmd := &cobra.Command{
		Use:   "compile -f FILE",
		Short: "Write the configuration that a policy's sidecar obeys",
		Long: `Write the configuration that a policy's sidecar obeys, as the operator writes it into the policy's ConfigMap.
The policy is checked as at admission. No cluster is needed.`,
		Example: "  kubectl idempotency compile -f policy.yaml -o config.json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			p, err := file.read(s.in)
			if err != nil {
				return err
			}
			config, err := policy.Compile(p)
			if err != nil {
				return err
			}
			document, err := proxyconfig.Encode(config)
			if err != nil {
				return err
			}
			if output == "" {
				_, err = s.out.Write(document)
			} else {
				err = os.WriteFile(output, document, 0o644) //nolint:gosec // it holds no secret, and the sidecar may run as another user
			}
			if err != nil {
				return fmt.Errorf("write configuration: %w", err)
			}
			return nil
		},
	}
	file.bind(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write; standard output without it")
	return cmd
}
