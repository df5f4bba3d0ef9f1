// SPDX-License-Identifier: Apache-2.0

package consumers

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	natsStream   = "ORDERS"
	natsSubject  = "orders"
	natsConsumer = "billing"
	// natsID is a header of ours: JetStream itself leaves out, for a while, what repeats a Nats-Msg-Id.
	natsID = "Message-Id"
)

// natsBroker is a server in this process, with a stream and a durable consumer.
type natsBroker struct {
	url       string
	js        jetstream.JetStream
	exhausted *nats.Subscription
	gaveUp    int
}

func newNATS(t *testing.T) broker {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(30 * time.Second) {
		t.Fatal("NATS does not start")
	}
	b := &natsBroker{url: s.ClientURL()}
	conn, err := nats.Connect(b.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if b.js, err = jetstream.New(conn); err != nil {
		t.Fatal(err)
	}
	if b.exhausted, err = conn.SubscribeSync("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>"); err != nil {
		t.Fatal(err)
	}
	stream, err := b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: natsStream, Subjects: []string{natsSubject}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{
		Durable: natsConsumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: 2 * time.Second, MaxDeliver: maxDeliveries,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *natsBroker) worker() worker { return worker{Broker: "nats", URL: b.url} }

func (b *natsBroker) publish(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if _, err := b.js.PublishMsgAsync(&nats.Msg{Subject: natsSubject, Header: nats.Header{natsID: {id}}}); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-b.js.PublishAsyncComplete():
	case <-t.Context().Done():
		t.Fatal("messages are not taken")
	}
}

func (b *natsBroker) pending(t *testing.T) int {
	t.Helper()
	consumer, err := b.js.Consumer(t.Context(), natsStream, natsConsumer)
	if err != nil {
		t.Fatal(err)
	}
	info, err := consumer.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return int(info.NumPending) + info.NumAckPending
}

func (b *natsBroker) givenUp(*testing.T) int {
	for {
		if _, err := b.exhausted.NextMsg(time.Millisecond); err != nil {
			return b.gaveUp
		}
		b.gaveUp++
	}
}

func consumeNATS(ctx context.Context, url string, handle func(id string) error) error {
	conn, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	consumer, err := js.Consumer(ctx, natsStream, natsConsumer)
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(32))
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, messages.Stop)
	defer stop()
	for {
		m, err := messages.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) {
			return conn.FlushTimeout(10 * time.Second)
		}
		if err != nil {
			return err
		}
		answer := m.Ack
		if err := handle(m.Headers().Get(natsID)); errors.Is(err, errPoison) {
			answer = m.Nak
		} else if err != nil {
			return err
		}
		if err := answer(); err != nil {
			return err
		}
	}
}
