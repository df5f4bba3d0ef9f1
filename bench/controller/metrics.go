// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// prepareScraper makes somebody who may read the manager's metrics.
func (b *bench) prepareScraper(ctx context.Context) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "prometheus"}}
	token := &authenticationv1.TokenRequest{}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "prometheus"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "prometheus"}},
	}
	if err := b.create(ctx, account); err != nil {
		return err
	}
	if err := b.create(ctx, binding); err != nil {
		return err
	}
	if err := b.client.SubResource("token").Create(ctx, account, token); err != nil {
		return fmt.Errorf("log in as prometheus: %w", err)
	}
	b.token = token.Status.Token
	return nil
}

// looked is how many passes over policies the manager has made, once none waits for its first; before that it is 0.
func (b *bench) looked(ctx context.Context) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+b.manager.metrics+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer "+b.token)
	insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}} //nolint:gosec // it makes its own certificate, on the loopback
	response, err := insecure.Do(request)
	if err != nil {
		return 0, nil // it does not serve yet
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, nil // it cannot ask the API server yet whether the token is good; the limit of the run bounds this
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return 0, fmt.Errorf("read metrics: %w", err)
	}
	if sum(families["workqueue_depth"], "name") > 0 {
		return 0, nil
	}
	return int(sum(families["controller_runtime_reconcile_total"], "controller")), nil
}

// sum adds up what a metric says of the controller of policies.
func sum(family *dto.MetricFamily, label string) (total float64) {
	for _, metric := range family.GetMetric() {
		for _, pair := range metric.GetLabel() {
			if pair.GetName() == label && pair.GetValue() == "policy" {
				total += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
			}
		}
	}
	return total
}
