// SPDX-License-Identifier: Apache-2.0

package keystore

import "encoding/base64"

// Text names the entry in keyspace and proves the right to change it, for an app that completes the entry in its own transaction: the token,
// then keyspace, client and key, each in base64, with dots in between. It is at most 1,500 bytes where the keyspace's name is at most 253.
func (o Ownership) Text(keyspace string) string {
	text := []byte(o.Token.String())
	for _, part := range []string{keyspace, o.Client, o.Key} {
		text = base64.StdEncoding.AppendEncode(append(text, '.'), []byte(part))
	}
	return string(text)
}
