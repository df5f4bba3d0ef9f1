// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/policy"
)

// A row changes the valid sample and names the fields that must be refused; none: it stays valid.
type row struct {
	reason string
	change func(*v1alpha1.IdempotencyPolicySpec)
	fields []string
	says   string
}

func check(t *testing.T, rows []row) {
	t.Helper()
	for _, tt := range rows {
		t.Run(tt.reason, func(t *testing.T) {
			p := sample(t)
			policy.Default(p)
			tt.change(&p.Spec)
			errs := policy.Validate(p)
			var fields []string
			for _, err := range errs {
				fields = append(fields, err.Field)
			}
			if diff := cmp.Diff(tt.fields, fields); diff != "" {
				t.Fatalf("refused fields (-want +got):\n%s%v", diff, errs)
			}
			if len(errs) > 0 && !strings.Contains(errs.ToAggregate().Error(), tt.says) {
				t.Errorf("error is %q and does not say %q", errs.ToAggregate(), tt.says)
			}
		})
	}
}

// change makes a row's change of the first route.
func change(f func(*v1alpha1.Route)) func(*v1alpha1.IdempotencyPolicySpec) {
	return func(spec *v1alpha1.IdempotencyPolicySpec) { f(&spec.Routes[0]) }
}

func TestValidatePolicy(t *testing.T) {
	check(t, []row{
		{"the sample is valid", func(*v1alpha1.IdempotencyPolicySpec) {}, nil, ""},
		{"an unknown mode", func(s *v1alpha1.IdempotencyPolicySpec) { s.Mode = "Off" }, []string{"spec.mode"}, "Enforce"},
		{"an empty selector would select everything", func(s *v1alpha1.IdempotencyPolicySpec) { s.Selector = metav1.LabelSelector{} }, []string{"spec.selector"}, "matchLabels"},
		{"a selector with an unknown operator", func(s *v1alpha1.IdempotencyPolicySpec) {
			s.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Near"}}
		}, []string{"spec.selector.matchExpressions[0].operator"}, "not a valid"},
		{"NamedPort with a number would be bypassed", func(s *v1alpha1.IdempotencyPolicySpec) { s.Target.Port = intstr.FromInt32(8080) }, []string{"spec.target.port"}, "give the container port a name"},
		{"None with a number", func(s *v1alpha1.IdempotencyPolicySpec) {
			s.Target = v1alpha1.Target{Scheme: v1alpha1.SchemeHTTP, Port: intstr.FromInt32(65535), Interception: v1alpha1.InterceptNone}
		}, nil, ""},
		{"a port beyond the last", func(s *v1alpha1.IdempotencyPolicySpec) {
			s.Target = v1alpha1.Target{Scheme: v1alpha1.SchemeHTTP, Port: intstr.FromInt32(65536), Interception: v1alpha1.InterceptNone}
		}, []string{"spec.target.port"}, "65535"},
		{"a number in quotes is no port name", func(s *v1alpha1.IdempotencyPolicySpec) { s.Target.Port = intstr.FromString("8080") }, []string{"spec.target.port"}, "at least one letter"},
		{"HTTP/2 without TLS", func(s *v1alpha1.IdempotencyPolicySpec) { s.Target.Scheme = v1alpha1.SchemeH2C }, nil, ""},
		{"an unknown scheme", func(s *v1alpha1.IdempotencyPolicySpec) { s.Target.Scheme = "http" }, []string{"spec.target.scheme"}, "HTTPS"},
		{"an unknown interception", func(s *v1alpha1.IdempotencyPolicySpec) { s.Target.Interception = "Magic" }, []string{"spec.target.interception"}, "NamedPort"},
		{"Redirect with a number", func(s *v1alpha1.IdempotencyPolicySpec) {
			s.Target = v1alpha1.Target{Scheme: v1alpha1.SchemeHTTP, Port: intstr.FromInt32(80), Interception: v1alpha1.InterceptRedirect}
		}, nil, ""},
		{"PortEnv with its variable", func(s *v1alpha1.IdempotencyPolicySpec) {
			s.Target = v1alpha1.Target{Scheme: v1alpha1.SchemeHTTP, Port: intstr.FromInt32(8080), Interception: v1alpha1.InterceptPortEnv, PortEnv: "PORT"}
		}, nil, ""},
		{"PortEnv without a variable", func(s *v1alpha1.IdempotencyPolicySpec) { s.Target.Interception = v1alpha1.InterceptPortEnv }, []string{"spec.target.portEnv"}, "such as PORT"},
		{"a variable that no shell could set", func(s *v1alpha1.IdempotencyPolicySpec) {
			s.Target.Interception, s.Target.PortEnv = v1alpha1.InterceptPortEnv, "8PORT"
		}, []string{"spec.target.portEnv"}, "such as PORT"},
		{"the longest variable", func(s *v1alpha1.IdempotencyPolicySpec) {
			s.Target.Interception, s.Target.PortEnv = v1alpha1.InterceptPortEnv, strings.Repeat("P", 128)
		}, nil, ""},
		{"a variable over the longest", func(s *v1alpha1.IdempotencyPolicySpec) {
			s.Target.Interception, s.Target.PortEnv = v1alpha1.InterceptPortEnv, strings.Repeat("P", 129)
		}, []string{"spec.target.portEnv"}, "such as PORT"},
		{"a variable that nothing uses", func(s *v1alpha1.IdempotencyPolicySpec) { s.Target.PortEnv = "PORT" }, []string{"spec.target.portEnv"}, "PortEnv"},
		{"no store", func(s *v1alpha1.IdempotencyPolicySpec) { s.Store.Postgres = nil }, []string{"spec.store.postgres"}, "dsnSecretRef"},
		{"consumers", func(s *v1alpha1.IdempotencyPolicySpec) { s.Consumers = consumers(64) }, nil, ""},
		{"a consumer more", func(s *v1alpha1.IdempotencyPolicySpec) { s.Consumers = consumers(65) }, []string{"spec.consumers"}, "64"},
		{"consumers without a transaction", func(s *v1alpha1.IdempotencyPolicySpec) { s.Store, s.Consumers = redisStore(0), consumers(1) }, []string{"spec.consumers"}, "store.postgres"},
		{"a consumer twice", func(s *v1alpha1.IdempotencyPolicySpec) { s.Consumers = append(consumers(1), consumers(1)...) }, []string{"spec.consumers[1].name"}, "Duplicate"},
		{"a consumer without a name", func(s *v1alpha1.IdempotencyPolicySpec) { s.Consumers = []v1alpha1.Consumer{{Window: "7d"}} }, []string{"spec.consumers[0].name"}, "lower case"},
		{"a consumer without a window", func(s *v1alpha1.IdempotencyPolicySpec) { s.Consumers = []v1alpha1.Consumer{{Name: "orders"}} }, []string{"spec.consumers[0].window"}, "between 1m and 366d"},
		{"a consumer that remembers for too long", func(s *v1alpha1.IdempotencyPolicySpec) {
			s.Consumers = []v1alpha1.Consumer{{Name: "orders", Window: "367d"}}
		}, []string{"spec.consumers[0].window"}, "between 1m and 366d"},
		{"two stores", func(s *v1alpha1.IdempotencyPolicySpec) { s.Store.Redis = &v1alpha1.RedisStore{} }, []string{"spec.store.redis"}, "exactly one"},
		{"no store", func(s *v1alpha1.IdempotencyPolicySpec) { s.Store.Postgres = nil }, []string{"spec.store.postgres"}, "redis.dsnSecretRef"},
		{"Redis, and nothing more", func(s *v1alpha1.IdempotencyPolicySpec) { s.Store = redisStore(0) }, nil, ""},
		{"the most replicas", func(s *v1alpha1.IdempotencyPolicySpec) { s.Store = redisStore(5) }, nil, ""},
		{"one replica more", func(s *v1alpha1.IdempotencyPolicySpec) { s.Store = redisStore(6) }, []string{"spec.store.redis.minReplicas"}, "from 0 to 5"},
		{"fewer than no replicas", func(s *v1alpha1.IdempotencyPolicySpec) { s.Store = redisStore(-1) }, []string{"spec.store.redis.minReplicas"}, "from 0 to 5"},
		{"Redis without the name of a Secret", func(s *v1alpha1.IdempotencyPolicySpec) {
			s.Store = redisStore(0)
			s.Store.Redis.DSNSecretRef.Name = ""
		}, []string{"spec.store.redis.dsnSecretRef.name"}, "name of a Secret"},
		{"an unknown onUnavailable", func(s *v1alpha1.IdempotencyPolicySpec) { s.Store.OnUnavailable = "Hope" }, []string{"spec.store.onUnavailable"}, "PassThrough"},
		{"a Secret without a name", func(s *v1alpha1.IdempotencyPolicySpec) { s.Store.Postgres.DSNSecretRef.Name = "" }, []string{"spec.store.postgres.dsnSecretRef.name"}, "name of a Secret"},
		{"encryption keys without a Secret's name", func(s *v1alpha1.IdempotencyPolicySpec) {
			s.Store.EncryptionKeySecretRef = &v1alpha1.EncryptionKeySecretRef{Key: "keys"}
		}, []string{"spec.store.encryptionKeySecretRef.name"}, "name of a Secret"},
		{"encryption keys under a key with a slash", func(s *v1alpha1.IdempotencyPolicySpec) {
			s.Store.EncryptionKeySecretRef = &v1alpha1.EncryptionKeySecretRef{Name: "keys", Key: "a/b"}
		}, []string{"spec.store.encryptionKeySecretRef.key"}, "key in the Secret"},
		{"a Secret key with a slash", func(s *v1alpha1.IdempotencyPolicySpec) { s.Store.Postgres.AdminDSNSecretRef.Key = "a/b" }, []string{"spec.store.postgres.adminDSNSecretRef.key"}, "key in the Secret"},
		{"a schema that would need quotes", func(s *v1alpha1.IdempotencyPolicySpec) { s.Store.Postgres.Schema = "Keys" }, []string{"spec.store.postgres.schema"}, "such as idempotency"},
		{"the longest schema", func(s *v1alpha1.IdempotencyPolicySpec) { s.Store.Postgres.Schema = strings.Repeat("s", 63) }, nil, ""},
		{"a schema over the longest", func(s *v1alpha1.IdempotencyPolicySpec) { s.Store.Postgres.Schema = strings.Repeat("s", 64) }, []string{"spec.store.postgres.schema"}, "63"},
		{"a schema of PostgreSQL's", func(s *v1alpha1.IdempotencyPolicySpec) { s.Store.Postgres.Schema = "pg_catalog" }, []string{"spec.store.postgres.schema"}, "belongs to PostgreSQL"},
		{"a keyspace", func(s *v1alpha1.IdempotencyPolicySpec) { s.Keyspace = strings.Repeat("k", 253) }, nil, ""},
		{"a keyspace too long", func(s *v1alpha1.IdempotencyPolicySpec) { s.Keyspace = strings.Repeat("k", 254) }, []string{"spec.keyspace"}, "253"},
		{"a keyspace that ends in a dot", func(s *v1alpha1.IdempotencyPolicySpec) { s.Keyspace = "a." }, []string{"spec.keyspace"}, "ending with a letter"},
		{"createAhead 0", func(s *v1alpha1.IdempotencyPolicySpec) { s.Retention.CreateAhead = 0 }, []string{"spec.retention.createAhead"}, "1 to 60"},
		{"createAhead 61", func(s *v1alpha1.IdempotencyPolicySpec) { s.Retention.CreateAhead = 61 }, []string{"spec.retention.createAhead"}, "1 to 60"},
		{"an unknown deletionPolicy", func(s *v1alpha1.IdempotencyPolicySpec) { s.Retention.DeletionPolicy = "Burn" }, []string{"spec.retention.deletionPolicy"}, "Retain"},
		{"an unknown log level", func(s *v1alpha1.IdempotencyPolicySpec) { s.Sidecar.LogLevel = "loud" }, []string{"spec.sidecar.logLevel"}, "debug"},
		{"several mistakes are reported at once", func(s *v1alpha1.IdempotencyPolicySpec) { s.Mode, s.Keyspace = "Off", "A" }, []string{"spec.mode", "spec.keyspace"}, "Enforce"},
	})
}

func TestValidateSidecar(t *testing.T) {
	list := func(name corev1.ResourceName, quantity string) corev1.ResourceList {
		return corev1.ResourceList{name: resource.MustParse(quantity)}
	}
	resources := func(r corev1.ResourceRequirements) func(*v1alpha1.IdempotencyPolicySpec) {
		return func(s *v1alpha1.IdempotencyPolicySpec) { s.Sidecar.Resources = r }
	}
	image := func(name string) func(*v1alpha1.IdempotencyPolicySpec) {
		return func(s *v1alpha1.IdempotencyPolicySpec) { s.Sidecar.Image = name }
	}
	check(t, []row{
		{"an image", image("registry.example:5000/proxy@sha256:0123"), nil, ""},
		{"an image with a space before it", image(" proxy:v1"), []string{"spec.sidecar.image"}, "write an image"},
		{"the longest image", image(strings.Repeat("i", 512)), nil, ""},
		{"an image over the longest", image(strings.Repeat("i", 513)), []string{"spec.sidecar.image"}, "write an image"},
		{"a request of all of the limit", resources(corev1.ResourceRequirements{Limits: list("cpu", "1"), Requests: list("cpu", "1000m")}), nil, ""},
		{"a request over the limit", resources(corev1.ResourceRequirements{Limits: list("cpu", "1"), Requests: list("cpu", "1001m")}), []string{"spec.sidecar.resources.requests[cpu]"}, "more than the limit, 1"},
		{"a request without a limit", resources(corev1.ResourceRequirements{Requests: list("memory", "64Mi")}), nil, ""},
		{"a negative limit", resources(corev1.ResourceRequirements{Limits: list("memory", "-1")}), []string{"spec.sidecar.resources.limits[memory]"}, "negative"},
		{"an unknown resource", resources(corev1.ResourceRequirements{Limits: list("memroy", "64Mi")}), []string{"spec.sidecar.resources.limits[memroy]"}, `"memory"`},
		{"a claim", resources(corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}), []string{"spec.sidecar.resources.claims"}, "remove it"},
	})
}

func TestValidateClient(t *testing.T) {
	jwt := func(f func(*v1alpha1.JWTClient)) v1alpha1.Client {
		j := &v1alpha1.JWTClient{Issuer: "https://issuer.example", Audiences: []string{"shop"}, JWKSURI: "https://issuer.example/keys", Claim: "sub"}
		f(j)
		return v1alpha1.Client{JWT: j}
	}
	set := func(c v1alpha1.Client) func(*v1alpha1.IdempotencyPolicySpec) {
		return func(s *v1alpha1.IdempotencyPolicySpec) { s.Client = c }
	}
	check(t, []row{
		{"authorization", set(v1alpha1.Client{Authorization: &v1alpha1.AuthorizationClient{}}), nil, ""},
		{"shared", set(v1alpha1.Client{Shared: &v1alpha1.SharedClient{}}), nil, ""},
		{"header with ranges", set(v1alpha1.Client{Header: "X-Client-Id", TrustedCIDRs: []string{"10.0.0.0/8", "fd00::/8"}}), nil, ""},
		{"jwt", set(jwt(func(*v1alpha1.JWTClient) {})), nil, ""},
		{"keys from a service of the cluster", set(jwt(func(j *v1alpha1.JWTClient) { j.JWKSURI = "http://dex.auth.svc/keys" })), nil, ""},
		{"keys that anybody on the way may replace", set(jwt(func(j *v1alpha1.JWTClient) { j.JWKSURI = "http://issuer.example/keys" })), []string{"spec.client.jwt.jwksURI"}, "https"},
		{"no place for the keys", set(jwt(func(j *v1alpha1.JWTClient) { j.JWKSURI = "/keys" })), []string{"spec.client.jwt.jwksURI"}, "absolute URL"},
		{"tokens for anybody", set(jwt(func(j *v1alpha1.JWTClient) { j.Audiences = nil })), []string{"spec.client.jwt.audiences"}, "aud"},
		{"an empty audience", set(jwt(func(j *v1alpha1.JWTClient) { j.Audiences = []string{""} })), []string{"spec.client.jwt.audiences[0]"}, "aud"},
		{"tokens of anybody", set(jwt(func(j *v1alpha1.JWTClient) { j.Issuer = "" })), []string{"spec.client.jwt.issuer"}, "iss"},
		{"no claim", set(jwt(func(j *v1alpha1.JWTClient) { j.Claim = "" })), []string{"spec.client.jwt.claim"}, "sub"},
		{"none", set(v1alpha1.Client{}), []string{"spec.client"}, "exactly one"},
		{"two", set(v1alpha1.Client{Header: "X-Client-Id", Shared: &v1alpha1.SharedClient{}}), []string{"spec.client"}, "exactly one"},
		{"ranges without header", set(v1alpha1.Client{Shared: &v1alpha1.SharedClient{}, TrustedCIDRs: []string{"10.0.0.0/8"}}), []string{"spec.client.trustedCIDRs"}, "set header"},
		{"an address is no range", set(v1alpha1.Client{Header: "X-Client-Id", TrustedCIDRs: []string{"10.0.0.1"}}), []string{"spec.client.trustedCIDRs[0]"}, "10.0.0.0/8"},
		{"no token", set(v1alpha1.Client{Header: "X Client"}), []string{"spec.client.header"}, "name of an HTTP header"},
		{"a credential would be stored", set(v1alpha1.Client{Header: "authorization"}), []string{"spec.client.header"}, "authorization: {}"},
		{"a header that names no client", set(v1alpha1.Client{Header: "Host"}), []string{"spec.client.header"}, "name another"},
		{"a header of the hop", set(v1alpha1.Client{Header: "connection"}), []string{"spec.client.header"}, "next hop"},
		{"a header of the sidecar's", set(v1alpha1.Client{Header: "Idempotency-Seed"}), []string{"spec.client.header"}, "sets this header itself"},
		{"the key's own header", set(v1alpha1.Client{Header: "idempotency-key"}), []string{"spec.routes[0].key.source.header"}, "holds the client already"},
	})
}

func TestValidateRoute(t *testing.T) {
	window := func(d v1alpha1.Duration) func(*v1alpha1.IdempotencyPolicySpec) {
		return change(func(r *v1alpha1.Route) { r.Window = d })
	}
	timeout := func(d v1alpha1.Duration) func(*v1alpha1.IdempotencyPolicySpec) {
		return change(func(r *v1alpha1.Route) { r.Timeout = d })
	}
	wait := func(mode v1alpha1.InFlightMode, d v1alpha1.Duration) func(*v1alpha1.IdempotencyPolicySpec) {
		return change(func(r *v1alpha1.Route) { r.InFlight = v1alpha1.InFlight{Mode: mode, MaxWait: d} })
	}
	path := func(p string) func(*v1alpha1.IdempotencyPolicySpec) {
		return change(func(r *v1alpha1.Route) { r.Path = p })
	}
	const bounds = "between 1m and 366d"
	check(t, []row{
		{"no route", func(s *v1alpha1.IdempotencyPolicySpec) { s.Routes = nil }, []string{"spec.routes"}, "at least one"},
		{"65 routes", func(s *v1alpha1.IdempotencyPolicySpec) { s.Routes = make([]v1alpha1.Route, 65) }, []string{"spec.routes"}, "64"},
		{"a name with a capital", change(func(r *v1alpha1.Route) { r.Name = "Pay" }), []string{"spec.routes[0].name"}, "lower case"},
		{"no method", change(func(r *v1alpha1.Route) { r.Methods = nil }), []string{"spec.routes[0].methods"}, "POST"},
		{"a method without effect", change(func(r *v1alpha1.Route) { r.Methods = []v1alpha1.Method{"GET"} }), []string{"spec.routes[0].methods[0]"}, "POST"},
		{"a method twice", change(func(r *v1alpha1.Route) { r.Methods = []v1alpha1.Method{"POST", "POST"} }), []string{"spec.routes[0].methods[1]"}, "Duplicate"},

		{"a path with wildcards", path("/orders/{id}/items/{rest...}"), nil, ""},
		{"a path that ends exactly", path("/orders/{$}"), nil, ""},
		{"a relative path", path("payments"), []string{"spec.routes[0].path"}, "begins with /"},
		{"a host is no part of a path", path("example.com/payments"), []string{"spec.routes[0].path"}, "begins with /"},
		{"a wildcard that is not closed", path("/orders/{id"), []string{"spec.routes[0].path"}, "ServeMux pattern"},
		{"a wildcard within a segment", path("/orders/x{id}"), []string{"spec.routes[0].path"}, "ServeMux pattern"},
		{"a wildcard twice", path("/{id}/{id}"), []string{"spec.routes[0].path"}, "duplicate wildcard"},
		{"dot segments never match", path("/a/../b"), []string{"spec.routes[0].path"}, "unclean"},
		{"the longest path", path("/" + strings.Repeat("p", 1023)), nil, ""},
		{"a path over the longest", path("/" + strings.Repeat("p", 1024)), []string{"spec.routes[0].path"}, "1024"},

		{"the shortest window", window("1m"), nil, ""},
		{"the longest window", window("366d"), nil, ""},
		{"under the shortest", window("59s"), []string{"spec.routes[0].window"}, bounds},
		{"over the longest", window("366d1s"), []string{"spec.routes[0].window"}, bounds},
		{"what overflows elsewhere", window("2562048h"), []string{"spec.routes[0].window"}, bounds},
		{"zero", window("0s"), []string{"spec.routes[0].window"}, bounds},
		{"negative", window("-1h"), []string{"spec.routes[0].window"}, "not a duration"},
		{"nanoseconds", window("1ns"), []string{"spec.routes[0].window"}, "not a duration"},
		{"a policy's window has the same bounds", func(s *v1alpha1.IdempotencyPolicySpec) { s.Retention.Window = "59s" }, []string{"spec.retention.window"}, bounds},

		{"a question before a replay", change(func(r *v1alpha1.Route) { r.ReplayAuthorization = "/may-replay" }), nil, ""},
		{"a question to another host", change(func(r *v1alpha1.Route) { r.ReplayAuthorization = "https://other.example/may" }), []string{"spec.routes[0].replayAuthorization"}, "path on the app"},
		{"the shortest timeout", timeout("1ms"), nil, ""},
		{"the longest timeout", timeout("1h"), nil, ""},
		{"no time at all", timeout("0s"), []string{"spec.routes[0].timeout"}, "between 1ms and 1h"},
		{"a timeout of the whole window", change(func(r *v1alpha1.Route) { r.Window, r.Timeout = "1m", "1m" }), nil, ""},
		{"a timeout beyond the route's window", change(func(r *v1alpha1.Route) { r.Window, r.Timeout = "1m", "1m1ms" }), []string{"spec.routes[0].timeout"}, "1m (window)"},
		{"a timeout beyond the policy's window", func(s *v1alpha1.IdempotencyPolicySpec) {
			s.Retention.Window, s.Routes[0].Window, s.Routes[0].Timeout = "1m", "", "61s"
		}, []string{"spec.routes[0].timeout"}, "1m (retention.window)"},
		{"over the longest timeout", timeout("1h1ms"), []string{"spec.routes[0].timeout"}, "between 1ms and 1h"},
		{"the longest wait", wait("Wait", "60s"), nil, ""},
		{"over the longest wait", wait("Wait", "60s1ms"), []string{"spec.routes[0].inFlight.maxWait"}, "60s"},
		{"a wait of nothing is Reject", wait("Wait", "0s"), []string{"spec.routes[0].inFlight.maxWait"}, "mode: Reject"},
		{"Reject does not wait", wait("Reject", "0s"), nil, ""},
		{"an unknown mode", wait("Queue", "2s"), []string{"spec.routes[0].inFlight.mode"}, "Wait"},
	})
}

func TestValidateRouteContent(t *testing.T) {
	unknown := func(outcome v1alpha1.OnUnknownOutcome, path string) func(*v1alpha1.IdempotencyPolicySpec) {
		return change(func(r *v1alpha1.Route) { r.OnUnknownOutcome, r.ReconcilePath = outcome, path })
	}
	source := func(source v1alpha1.KeySource) func(*v1alpha1.IdempotencyPolicySpec) {
		return change(func(r *v1alpha1.Route) { r.Key.Source = source })
	}
	keyless := v1alpha1.KeySource{Fingerprint: &v1alpha1.FingerprintKey{}}
	ignore := func(pointers ...string) func(*v1alpha1.IdempotencyPolicySpec) {
		return change(func(r *v1alpha1.Route) { r.Fingerprint.Ignore = pointers })
	}
	maxBytes := func(size string) func(*v1alpha1.IdempotencyPolicySpec) {
		return change(func(r *v1alpha1.Route) { r.Responses.MaxBytes = resource.MustParse(size) })
	}
	status := func(code string, rule v1alpha1.StatusRule) func(*v1alpha1.IdempotencyPolicySpec) {
		return change(func(r *v1alpha1.Route) { r.Responses.Statuses = map[string]v1alpha1.StatusRule{code: rule} })
	}
	response := func(name string) func(*v1alpha1.IdempotencyPolicySpec) {
		return change(func(r *v1alpha1.Route) { r.Responses.Headers = []string{name} })
	}
	check(t, []row{
		{"the longest key", change(func(r *v1alpha1.Route) { r.Key.MaxLength = 255 }), nil, ""},
		{"a key over the longest", change(func(r *v1alpha1.Route) { r.Key.MaxLength = 256 }), []string{"spec.routes[0].key.maxLength"}, "1 to 255"},
		{"a key of nothing", change(func(r *v1alpha1.Route) { r.Key.MaxLength = 0 }), []string{"spec.routes[0].key.maxLength"}, "1 to 255"},
		{"a pattern", change(func(r *v1alpha1.Route) { r.Key.Pattern = "[0-9a-f]{32}|x" }), nil, ""},
		{"a pattern that RE2 has not", change(func(r *v1alpha1.Route) { r.Key.Pattern = "(?=a)" }), []string{"spec.routes[0].key.pattern"}, "RE2"},
		{"a pattern that only closes ours", change(func(r *v1alpha1.Route) { r.Key.Pattern = "a)|(?:b" }), []string{"spec.routes[0].key.pattern"}, "RE2"},
		{"a cookie as key", change(func(r *v1alpha1.Route) { r.Key.Source.Header = "Cookie" }), []string{"spec.routes[0].key.source.header"}, "secret"},

		{"an event as key", source(v1alpha1.KeySource{CloudEvent: &v1alpha1.CloudEventKey{}}), nil, ""},
		{"a key in the body", source(v1alpha1.KeySource{JSONPointer: "/data/0/a~1b"}), nil, ""},
		{"the longest pointer", source(v1alpha1.KeySource{JSONPointer: "/" + strings.Repeat("a", 511)}), nil, ""},
		{"a pointer over the longest", source(v1alpha1.KeySource{JSONPointer: "/" + strings.Repeat("a", 512)}), []string{"spec.routes[0].key.source.jsonPointer"}, "512"},
		{"a pointer that is none", source(v1alpha1.KeySource{JSONPointer: "/a~2"}), []string{"spec.routes[0].key.source.jsonPointer"}, "~0"},
		{"no source", source(v1alpha1.KeySource{}), []string{"spec.routes[0].key.source"}, "exactly one"},
		{"two sources", source(v1alpha1.KeySource{Header: "X-Id", JSONPointer: "/id"}), []string{"spec.routes[0].key.source"}, "exactly one"},
		{"no key, with its window", change(func(r *v1alpha1.Route) { r.Key.Source, r.Window = keyless, "1m" }), nil, ""},
		{"no key, without a window", source(keyless), []string{"spec.routes[0].window"}, "such as 1m"},
		{"no key, and not required", change(func(r *v1alpha1.Route) { r.Key.Source, r.Window, r.Key.Required = keyless, "1m", new(false) }), []string{"spec.routes[0].key.required"}, "never missing"},
		{"no key, and a pattern", change(func(r *v1alpha1.Route) { r.Key.Source, r.Window, r.Key.Pattern = keyless, "1m", "a" }), []string{"spec.routes[0].key.pattern"}, "no key"},

		{"pointers", ignore("/sentAt", "/a~1b/~0/0"), nil, ""},
		{"the whole body", ignore(""), []string{"spec.routes[0].fingerprint.ignore[0]"}, "whole body"},
		{"no slash", ignore("sentAt"), []string{"spec.routes[0].fingerprint.ignore[0]"}, "begins with /"},
		{"a bare tilde", ignore("/a~"), []string{"spec.routes[0].fingerprint.ignore[0]"}, "~0"},
		{"a tilde with another digit", ignore("/a", "/a~2"), []string{"spec.routes[0].fingerprint.ignore[1]"}, "~0"},
		{"ignore in raw bytes", change(func(r *v1alpha1.Route) {
			r.Fingerprint = v1alpha1.Fingerprint{CanonicalJSON: new(false), Ignore: []string{"/a"}}
		}), []string{"spec.routes[0].fingerprint.ignore"}, "canonicalJSON"},
		{"a fingerprint header", change(func(r *v1alpha1.Route) { r.Fingerprint.Headers = []string{"X-Tenant"} }), nil, ""},
		{"the host", change(func(r *v1alpha1.Route) { r.Fingerprint.Headers = []string{"host"} }), nil, ""},
		{"a fingerprint header of the message", change(func(r *v1alpha1.Route) { r.Fingerprint.Headers = []string{"content-length"} }), []string{"spec.routes[0].fingerprint.headers[0]"}, "intention"},

		{"Reconcile with its path", unknown("Reconcile", "/reconcile"), nil, ""},
		{"Reconcile without a path", unknown("Reconcile", ""), []string{"spec.routes[0].reconcilePath"}, "write the path"},
		{"Reconcile with a relative path", unknown("Reconcile", "reconcile"), []string{"spec.routes[0].reconcilePath"}, "path on the app"},
		{"Reconcile elsewhere", unknown("Reconcile", "http://other/x"), []string{"spec.routes[0].reconcilePath"}, "path on the app"},
		{"Reconcile at another host", unknown("Reconcile", "//other/x"), []string{"spec.routes[0].reconcilePath"}, "path on the app"},
		{"Reconcile with a query", unknown("Reconcile", "/x?a=b"), []string{"spec.routes[0].reconcilePath"}, "path on the app"},
		{"a path that nobody asks", unknown("Block", "/reconcile"), []string{"spec.routes[0].reconcilePath"}, "set onUnknownOutcome: Reconcile"},
		{"an unknown outcome rule", unknown("Pray", ""), []string{"spec.routes[0].onUnknownOutcome"}, "Block"},

		{"no byte recorded", maxBytes("0"), nil, ""},
		{"the largest answer", maxBytes("64Mi"), nil, ""},
		{"over the largest", maxBytes("67108865"), []string{"spec.routes[0].responses.maxBytes"}, "64Mi"},
		{"less than nothing", maxBytes("-1"), []string{"spec.routes[0].responses.maxBytes"}, "64Mi"},
		{"a status", status("422", "Release"), nil, ""},
		{"the first final status", status("200", "Release"), nil, ""},
		{"the last status", status("599", "Store"), nil, ""},
		{"an interim status", status("199", "Store"), []string{"spec.routes[0].responses.statuses[199]"}, "200 to 599"},
		{"beyond the last status", status("600", "Store"), []string{"spec.routes[0].responses.statuses[600]"}, "200 to 599"},
		{"a class of statuses", status("4xx", "Store"), []string{"spec.routes[0].responses.statuses[4xx]"}, "200 to 599"},
		{"a status with a zero before it", status("0422", "Store"), []string{"spec.routes[0].responses.statuses[0422]"}, "200 to 599"},
		{"an unknown rule", status("422", "Maybe"), []string{"spec.routes[0].responses.statuses[422]"}, "Release"},
		{"a response header", response("X-Payment-Id"), nil, ""},
		{"a session", response("set-cookie"), []string{"spec.routes[0].responses.headers[0]"}, "session"},
		{"a date", response("Date"), []string{"spec.routes[0].responses.headers[0]"}, "its own"},
		{"CORS", response("access-control-allow-origin"), []string{"spec.routes[0].responses.headers[0]"}, "one request"},
		{"rate limits", response("X-RateLimit-Remaining"), []string{"spec.routes[0].responses.headers[0]"}, "one request"},
		{"transfer coding", response("transfer-encoding"), []string{"spec.routes[0].responses.headers[0]"}, "next hop"},
	})
}

func TestValidateOverlap(t *testing.T) {
	add := func(path string, methods ...v1alpha1.Method) func(*v1alpha1.IdempotencyPolicySpec) {
		return func(s *v1alpha1.IdempotencyPolicySpec) {
			s.Routes[0].Path = "/orders/{id}/capture"
			other := *s.Routes[0].DeepCopy()
			other.Name, other.Path, other.Methods = "other", path, methods
			s.Routes = append(s.Routes, other)
		}
	}
	check(t, []row{
		{"other paths", add("/orders/{id}/refund", "POST"), nil, ""},
		{"the same path with another method", add("/orders/{id}/capture", "PUT"), nil, ""},
		{"a more specific path wins", add("/orders/new/capture", "POST"), nil, ""},
		{"a subtree is less specific", add("/orders/", "POST"), nil, ""},
		{"the same path", add("/orders/{id}/capture", "PUT", "POST"), []string{"spec.routes[1].path"}, `route "other" overlaps route "create-payment" (spec.routes[0].path) for POST`},
		{"another name for the wildcard", add("/orders/{order}/capture", "POST"), []string{"spec.routes[1].path"}, "change one of the paths"},
		{"each more specific somewhere", add("/orders/new/{action}", "POST"), []string{"spec.routes[1].path"}, "both match some paths"},
		{"the same name twice", func(s *v1alpha1.IdempotencyPolicySpec) {
			add("/refunds", "POST")(s)
			s.Routes[1].Name = s.Routes[0].Name
		}, []string{"spec.routes[1].name"}, "Duplicate"},
	})
}

// TestValidateIsStable sees the same text for the same policy, since the text becomes a condition's message.
func TestValidateIsStable(t *testing.T) {
	p := sample(t)
	policy.Default(p)
	rules := map[string]v1alpha1.StatusRule{"1": "x", "2": "x", "3": "x", "4": "x", "5": "x"}
	p.Spec.Routes[0].Responses.Statuses = rules
	first := policy.Validate(p).ToAggregate().Error()
	for range 20 {
		p.Spec.Routes[0].Responses.Statuses = maps.Clone(rules)
		if again := policy.Validate(p).ToAggregate().Error(); again != first {
			t.Fatalf("the same policy gives two texts:\n%s\n%s", first, again)
		}
	}
}

func redisStore(minReplicas int32) v1alpha1.Store {
	return v1alpha1.Store{
		Redis:         &v1alpha1.RedisStore{DSNSecretRef: v1alpha1.SecretKeyRef{Name: "redis", Key: "dsn"}, MinReplicas: minReplicas},
		OnUnavailable: v1alpha1.OnUnavailableReject,
	}
}

// consumers of distinct names.
func consumers(n int) []v1alpha1.Consumer {
	var all []v1alpha1.Consumer
	for i := range n {
		all = append(all, v1alpha1.Consumer{Name: fmt.Sprint("consumer-", i), Window: "7d"})
	}
	return all
}
