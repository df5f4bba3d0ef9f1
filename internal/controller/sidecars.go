// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

const (
	// sidecarTimeout bounds one question to one sidecar, answer included.
	sidecarTimeout = time.Second
	// sidecarAnswer bounds what is read of an answer, in bytes.
	sidecarAnswer = 4 << 10
	// sidecarRate bounds the questions of a second, whatever the number of pods, and sidecarsAtOnce those of one policy at a time.
	sidecarRate    = 500
	sidecarsAtOnce = 16
	// askersAtOnce bounds the policies whose sidecars are asked at a time.
	askersAtOnce = 16
	// askBehind is how soon a sidecar is asked again that has not taken up a configuration yet: the kubelet takes up to two minutes.
	// Sidecars that do not answer are asked ever less often, down to askSilent.
	askBehind = 2 * time.Second
	askSilent = time.Minute
	// silentAfter is how many questions in a row a sidecar leaves unanswered before that is held against it: it may have just started.
	silentAfter = 3
)

// Sidecars finds out which configuration running sidecars use. Make it with NewSidecars.
//
// It asks each sidecar at its admin port, and only until it has named the configuration that is wanted: the file that a sidecar follows is never
// replaced by an older one, so an answer holds until something else is wanted. In steady state nobody is asked anything.
// What it knows is in memory only, and learned anew by another leader.
type Sidecars struct {
	client *http.Client
	limit  *rate.Limiter
	ask    chan event.GenericEvent
	wake   chan event.GenericEvent

	mu       sync.Mutex
	policies map[types.NamespacedName]*expectation
}

// expectation is what a policy wants of its sidecars, and what they said.
type expectation struct {
	revision string
	pods     map[types.UID]*sidecarState
	// quiet counts the rounds in a row in which nobody answered.
	quiet int
}

type sidecarState struct {
	address string
	said    proxyconfig.Running
	// unanswered counts the questions since the last answer.
	unanswered int
}

// Told counts running sidecars by what they said.
type Told struct {
	// Current use the configuration that is wanted, Behind an older one, and Refusing cannot use it.
	Current, Behind, Refusing int
	// Silent do not answer. Unasked have not been asked often enough to say that.
	Silent, Unasked int
}

// NewSidecars returns Sidecars that ask once they are set up.
func NewSidecars() *Sidecars {
	return &Sidecars{
		client: &http.Client{
			Timeout: sidecarTimeout,
			// Each is asked once or twice: no connection is worth keeping, and no proxy leads to a pod.
			Transport:     &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: sidecarAnswer},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		limit: rate.NewLimiter(sidecarRate, sidecarRate/10),
		ask:   make(chan event.GenericEvent), wake: make(chan event.GenericEvent),
		policies: map[types.NamespacedName]*expectation{},
	}
}

// Wake yields a policy whenever there is news for its status.
func (s *Sidecars) Wake() <-chan event.GenericEvent { return s.wake }

// SetupWithManager makes the leader's manager ask.
func (s *Sidecars) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("sidecars").
		WithOptions(controller.Options{MaxConcurrentReconciles: askersAtOnce}).
		WatchesRawSource(source.Channel(s.ask, &handler.EnqueueRequestForObject{})).
		Complete(s)
}

// Expect says which revision a policy wants of which running sidecars, by the UID of their pods, and returns what they said so far.
// A file that had to be restored has been another one meanwhile: what was said of it before does not count.
func (s *Sidecars) Expect(ctx context.Context, policy types.NamespacedName, revision string, sidecars map[types.UID]string, restored bool) Told {
	told, news := s.expect(policy, revision, sidecars, restored)
	if news {
		send(ctx, s.ask, policy)
	}
	return told
}

// send puts a policy into a queue, unless ctx ends first.
func send(ctx context.Context, queue chan<- event.GenericEvent, policy types.NamespacedName) {
	named := &v1alpha1.IdempotencyPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: policy.Namespace, Name: policy.Name}}
	select {
	case queue <- event.GenericEvent{Object: named}:
	case <-ctx.Done():
	}
}

func (s *Sidecars) expect(policy types.NamespacedName, revision string, sidecars map[types.UID]string, restored bool) (told Told, news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.policies[policy]
	if e == nil || (restored && e.revision == revision) {
		e = &expectation{pods: map[types.UID]*sidecarState{}}
		s.policies[policy] = e
	}
	if e.revision != revision {
		e.revision, e.quiet, news = revision, 0, len(sidecars) > 0
	}
	for uid, address := range sidecars {
		if known := e.pods[uid]; known == nil || known.address != address {
			e.pods[uid], e.quiet, news = &sidecarState{address: address}, 0, true
		}
	}
	for uid := range e.pods {
		if sidecars[uid] == "" {
			delete(e.pods, uid)
		}
	}
	return e.told(), news
}

// told counts. It is called with the lock held.
func (e *expectation) told() (t Told) {
	for _, state := range e.pods {
		switch {
		case state.said.Revision == e.revision:
			t.Current++
		case state.said.Refused == e.revision:
			t.Refusing++
		case state.unanswered >= silentAfter:
			t.Silent++
		case state.said.Revision == "":
			t.Unasked++
		default:
			t.Behind++
		}
	}
	return t
}

// Forget says that a policy is gone.
func (s *Sidecars) Forget(policy types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.policies, policy)
}

// Reconcile asks those sidecars of one policy that have not named the configuration that is wanted.
func (s *Sidecars) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	before, open := s.open(req.NamespacedName)
	if len(open) == 0 {
		return ctrl.Result{}, nil
	}
	answers := s.askAll(ctx, open)
	if ctx.Err() != nil {
		return ctrl.Result{}, nil //nolint:nilerr // the manager stops
	}
	now, again := s.learn(req.NamespacedName, answers)
	if now != before {
		send(ctx, s.wake, req.NamespacedName)
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// open returns who has to be asked, by address, and what is known before that.
func (s *Sidecars) open(policy types.NamespacedName) (Told, map[types.UID]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.policies[policy]
	if e == nil {
		return Told{}, nil
	}
	open := map[types.UID]string{}
	for uid, state := range e.pods {
		if state.said.Revision != e.revision {
			open[uid] = state.address
		}
	}
	return e.told(), open
}

// learn keeps what was answered, and says when to ask again; zero: not before something changes.
func (s *Sidecars) learn(policy types.NamespacedName, answers map[types.UID]*proxyconfig.Running) (Told, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.policies[policy]
	if e == nil {
		return Told{}, 0
	}
	e.quiet++
	for uid, answer := range answers {
		state := e.pods[uid]
		switch {
		case state == nil: // the pod went meanwhile
		case answer == nil:
			state.unanswered++
		default:
			state.said, state.unanswered, e.quiet = *answer, 0, 0
		}
	}
	told := e.told()
	if told.Current == len(e.pods) {
		return told, 0
	}
	return told, min(askBehind<<min(e.quiet, 10), askSilent)
}

// askAll asks at once as many as the bounds allow; who does not answer has nil.
func (s *Sidecars) askAll(ctx context.Context, open map[types.UID]string) map[types.UID]*proxyconfig.Running {
	var mu sync.Mutex
	var asking sync.WaitGroup
	answers, turn := map[types.UID]*proxyconfig.Running{}, make(chan struct{}, sidecarsAtOnce)
	for uid, address := range open {
		if s.limit.Wait(ctx) != nil {
			break
		}
		turn <- struct{}{}
		asking.Go(func() {
			defer func() { <-turn }()
			answer, err := s.askOne(ctx, address)
			if err != nil {
				answer = nil
			}
			mu.Lock()
			defer mu.Unlock()
			answers[uid] = answer
		})
	}
	asking.Wait()
	return answers
}

// askOne asks the sidecar at address, which is a host and a port.
func (s *Sidecars) askOne(ctx context.Context, address string) (*proxyconfig.Running, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+proxyconfig.RunningPath, nil)
	if err != nil {
		return nil, fmt.Errorf("ask sidecar %s: %w", address, err)
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask sidecar %s: %w", address, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask sidecar %s: %s", address, response.Status)
	}
	answer := &proxyconfig.Running{}
	if err := json.NewDecoder(io.LimitReader(response.Body, sidecarAnswer)).Decode(answer); err != nil {
		return nil, fmt.Errorf("decode answer of sidecar %s: %w", address, err)
	}
	if answer.Revision == "" {
		return nil, errors.New("answer of sidecar " + address + " names no revision")
	}
	return answer, nil
}

// sidecarAddress is where a sidecar is asked.
func sidecarAddress(ip string, port int32) string { return net.JoinHostPort(ip, fmt.Sprint(port)) }
