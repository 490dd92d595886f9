// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate

import "gpu-dra-driver/pkg/claim/record"

// phase is the meaning of a claim's record in a boot. The table in docs/design/records.md says what follows from it.
type phase int

const (
	// absent: the claim has no record.
	absent phase = iota
	// intent: some effects may exist, and the claim is not prepared.
	intent
	// replacing: an intent that replaces a commit of an earlier boot. The devices stay the claim's.
	replacing
	// committed: all effects exist, and containers may use them.
	committed
	// committedEarlier: the effects ended with an earlier boot. The devices stay the claim's.
	committedEarlier
	// unknown: the record was unreadable, and no other source shows the claim's devices.
	unknown
)

func phaseOf(r record.Record, boot string) phase {
	switch {
	case r.State == record.Intent && r.Renews != "":
		return replacing
	case r.State == record.Intent:
		return intent
	case r.State == record.Committed && r.BootID != boot:
		return committedEarlier
	case r.State == record.Committed:
		return committed
	case r.State == record.Unknown:
		return unknown
	}
	return absent
}

// prepared reports whether the record is a commit, of whichever boot.
func (p phase) prepared() bool { return p == committed || p == committedEarlier }
