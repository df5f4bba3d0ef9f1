// SPDX-License-Identifier: Apache-2.0

// Package payments is a small payments service that knows nothing of idempotency: every POST /payments is a new payment. It counts its
// executions, so that a test can tell whether somebody in front of it kept duplicates away, and fails on request.
//
//	POST /payments       {"amount": 1200, "currency": "EUR", "simulate": {...}}: 201, Location, ETag, Set-Cookie and the new payment
//	POST /payments/{door} the same by another path, for a policy to treat otherwise
//	GET  /payments/{id}  that payment, or 404
//	GET  /reconcile      the payment made for this client (X-Client-Id) and Idempotency-Key, or 404
//	GET  /stats          Stats
//	GET  /healthz        200
package payments

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Payment is what the service makes.
type Payment struct {
	ID       string `json:"id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	// Note is as long as Simulate.NoteBytes asks for.
	Note string `json:"note,omitempty"`
}

// Simulate is part of a request and makes its execution slow or bad.
type Simulate struct {
	// SleepMillis is how long the execution takes, whether or not the caller waits.
	SleepMillis int64 `json:"sleepMillis"`
	// Status, when not 0, is the answer instead of a payment.
	Status int `json:"status"`
	// Abort closes the connection, after the payment was made, without an answer.
	Abort bool `json:"abort"`
	// Times bounds Status and Abort to the first executions of a key; 0: every execution.
	Times int `json:"times"`
	// NoteBytes makes the answer large.
	NoteBytes int `json:"noteBytes"`
}

// Stats is how often the service executed.
type Stats struct {
	// Executions of POST /payments in all, failed ones too.
	Executions int `json:"executions"`
	// ByKey are the executions by Idempotency-Key, for requests that had one.
	ByKey map[string]int `json:"byKey"`
}

// maxBody bounds a request.
const maxBody = 16 << 20

// Service is the service. Its zero value is not ready; see New.
type Service struct {
	mux *http.ServeMux

	mu       sync.Mutex
	stats    Stats
	byID     map[string]Payment
	byIntent map[intent]Payment
}

// intent is what /reconcile is asked about.
type intent struct{ client, key string }

// New makes a service without payments.
func New() *Service {
	s := &Service{
		mux:      http.NewServeMux(),
		stats:    Stats{ByKey: map[string]int{}},
		byID:     map[string]Payment{},
		byIntent: map[intent]Payment{},
	}
	s.mux.HandleFunc("POST /payments", s.create)
	s.mux.HandleFunc("POST /payments/{door}", s.create)
	s.mux.HandleFunc("GET /payments/{id}", s.get)
	s.mux.HandleFunc("GET /reconcile", s.reconcile)
	s.mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, s.Stats()) })
	s.mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	return s
}

// ServeHTTP serves the routes of the package's comment.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Stats returns a copy of the counts.
func (s *Service) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{Executions: s.stats.Executions, ByKey: maps.Clone(s.stats.ByKey)}
}

func (s *Service) create(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Amount   int64    `json:"amount"`
		Currency string   `json:"currency"`
		Simulate Simulate `json:"simulate"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&request); err != nil {
		answer(w, http.StatusBadRequest, map[string]string{"error": "body is not a payment"})
		return
	}
	if request.Amount <= 0 || len(request.Currency) != 3 || request.Simulate.NoteBytes < 0 || request.Simulate.NoteBytes > maxBody {
		answer(w, http.StatusBadRequest, map[string]string{"error": "amount is positive and currency has three letters"})
		return
	}
	by := intent{client: r.Header.Get("X-Client-Id"), key: strings.Trim(r.Header.Get("Idempotency-Key"), `"`)}
	failing := s.count(by.key, request.Simulate)
	time.Sleep(time.Duration(request.Simulate.SleepMillis) * time.Millisecond)
	if failing && request.Simulate.Status != 0 {
		answer(w, request.Simulate.Status, map[string]string{"error": "simulated"})
		return
	}
	payment := Payment{
		ID:       "pay_" + strings.ToLower(rand.Text()),
		Amount:   request.Amount,
		Currency: request.Currency,
		Note:     strings.Repeat("n", request.Simulate.NoteBytes),
	}
	s.keep(by, payment)
	if failing && request.Simulate.Abort {
		panic(http.ErrAbortHandler)
	}
	sum := sha256.Sum256([]byte(payment.ID))
	w.Header().Set("Location", "/payments/"+payment.ID)
	w.Header().Set("ETag", `"`+hex.EncodeToString(sum[:8])+`"`)
	http.SetCookie(w, &http.Cookie{Name: "session", Value: rand.Text(), Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	answer(w, http.StatusCreated, payment)
}

// count counts an execution and says whether it is to fail.
func (s *Service) count(key string, simulate Simulate) (failing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Executions++
	if key == "" {
		return simulate.Times == 0 || s.stats.Executions <= simulate.Times
	}
	s.stats.ByKey[key]++
	return simulate.Times == 0 || s.stats.ByKey[key] <= simulate.Times
}

func (s *Service) keep(by intent, payment Payment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[payment.ID] = payment
	if by.key != "" {
		s.byIntent[by] = payment
	}
}

func (s *Service) get(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	payment, found := s.byID[r.PathValue("id")]
	s.mu.Unlock()
	answerFound(w, payment, found)
}

func (s *Service) reconcile(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	payment, found := s.byIntent[intent{client: r.Header.Get("X-Client-Id"), key: strings.Trim(r.Header.Get("Idempotency-Key"), `"`)}]
	s.mu.Unlock()
	answerFound(w, payment, found)
}

func answerFound(w http.ResponseWriter, payment Payment, found bool) {
	if !found {
		answer(w, http.StatusNotFound, map[string]string{"error": "no such payment"})
		return
	}
	answer(w, http.StatusOK, payment)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the caller has gone
}
