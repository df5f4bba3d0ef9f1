// SPDX-License-Identifier: Apache-2.0

package consumers

import (
	"context"
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	rabbitQueue = "orders"
	rabbitDead  = "orders.dead"
)

// rabbit is a queue of a server of our own, and where it puts what was delivered too often.
type rabbit struct {
	url     string
	channel *amqp.Channel
}

func newRabbitMQ(t *testing.T) broker {
	t.Helper()
	b := &rabbit{url: startRabbitMQ(t)}
	conn, err := amqp.Dial(b.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if b.channel, err = conn.Channel(); err != nil {
		t.Fatal(err)
	}
	_, err = b.channel.QueueDeclare(rabbitQueue, true, false, false, false, amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": maxDeliveries, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": rabbitDead,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.channel.QueueDeclare(rabbitDead, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	if err := b.channel.Confirm(false); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *rabbit) worker() worker { return worker{Broker: "rabbitmq", URL: b.url} }

func (b *rabbit) publish(t *testing.T, ids ...string) {
	t.Helper()
	var last *amqp.DeferredConfirmation
	for _, id := range ids {
		var err error
		last, err = b.channel.PublishWithDeferredConfirmWithContext(t.Context(), "", rabbitQueue, true, false, amqp.Publishing{MessageId: id, DeliveryMode: amqp.Persistent})
		if err != nil {
			t.Fatal(err)
		}
	}
	if taken, err := last.WaitContext(t.Context()); err != nil || !taken {
		t.Fatalf("messages are not taken: %v", err)
	}
}

func (b *rabbit) pending(t *testing.T) int { return b.ready(t, rabbitQueue) }

func (b *rabbit) givenUp(t *testing.T) int { return b.ready(t, rabbitDead) }

func (b *rabbit) ready(t *testing.T, queue string) int {
	t.Helper()
	q, err := b.channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Messages
}

func consumeRabbitMQ(ctx context.Context, url string, handle func(id string) error) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := channel.Qos(32, 0, false); err != nil {
		return err
	}
	deliveries, err := channel.ConsumeWithContext(context.WithoutCancel(ctx), rabbitQueue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil // closing gives back what was fetched
		case d, open := <-deliveries:
			if !open {
				return errors.New("the server has closed the channel")
			}
			if err := answer(d, handle(d.MessageId)); err != nil {
				return err
			}
		}
	}
}

// answer acknowledges a message that was taken, and gives back one that failed.
func answer(d amqp.Delivery, err error) error {
	switch {
	case err == nil:
		return d.Ack(false)
	case errors.Is(err, errPoison):
		return d.Nack(false, true)
	default:
		return err
	}
}
