// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

// cluster is the cluster, the user and the namespace that kubectl itself would take: its flags and its files.
type cluster struct {
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
}

// bind adds kubectl's own flags; help shows the usual three.
func (c *cluster) bind(cmd *cobra.Command) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.StringVar(&c.kubeconfig, "kubeconfig", "", "path to the kubeconfig file")
	clientcmd.BindOverrideFlags(&c.overrides, flags, clientcmd.RecommendedConfigOverrideFlags(""))
	flags.VisitAll(func(f *pflag.Flag) {
		switch f.Name {
		case "kubeconfig", "context", "namespace":
		default:
			f.Hidden = true
		}
	})
	cmd.Flags().AddFlagSet(flags)
}

// connect returns a client for the cluster and the namespace to work in. It says nothing to the cluster yet.
func (c *cluster) connect() (client.Client, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &c.overrides)
	namespace, _, err := config.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("read kubeconfig: %w", err)
	}
	rest, err := config.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("read kubeconfig: %w", err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, "", fmt.Errorf("build scheme: %w", err)
		}
	}
	api, err := client.New(rest, client.Options{Scheme: scheme})
	if err != nil {
		return nil, "", fmt.Errorf("connect to the cluster: %w", err)
	}
	return api, namespace, nil
}

// explain adds to an error of the API server what a user can do about it.
func explain(err error) error {
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("the cluster does not know IdempotencyPolicy; install the operator first: %w", err)
	}
	return err
}
