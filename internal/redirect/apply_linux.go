// SPDX-License-Identifier: Apache-2.0

package redirect

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// table is ours alone, so that it can be made anew without touching anybody else's rules.
const table = "idempotency"

// Apply puts the rules, for IPv4 and IPv6, into the network namespace of the calling thread, in the place of those that it made before. The
// kernel changes from the old to the new ones at once: no connection meets neither. What the pod itself sends, also to itself, meets no rule.
// It needs CAP_NET_ADMIN in that namespace and Linux 5.2.
func Apply(p Ports) error {
	if err := p.Validate(); err != nil {
		return err
	}
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	ours := &nftables.Table{Family: nftables.TableFamilyINet, Name: table}
	conn.AddTable(ours) // one that is not there cannot be deleted
	conn.DelTable(ours)
	conn.AddTable(ours)
	inbound := conn.AddChain(&nftables.Chain{
		Name: "inbound", Table: ours, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	conn.AddRule(&nftables.Rule{Table: ours, Chain: inbound, Exprs: lead(p.App, p.Sidecar)})
	conn.AddRule(&nftables.Rule{Table: ours, Chain: inbound, Exprs: lead(p.Probes, p.App)})
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("write rules of table %s: %w", table, err)
	}
	return nil
}

// lead is: iifname != "lo" meta l4proto tcp tcp dport from redirect to :to.
func lead(from, to int) []expr.Any {
	loopback := make([]byte, unix.IFNAMSIZ)
	copy(loopback, "lo")
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: loopback},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(uint16(from))},
		&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(uint16(to))},
		&expr.Redir{RegisterProtoMin: 1},
	}
}
