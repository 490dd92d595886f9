// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package record keeps what the driver did for each claim: one file a claim, named by the claim's UID, which is the
// truth that a restart finds.
//
// A file is two lines: a header with version and checksum, then the payload that the checksum covers, byte for byte, so
// that a later version may add fields without an older one taking the file for damaged.
//
// Traps. A record that cannot be read is not "no record": its claim may hold devices. It gets a second name in
// quarantine and is replaced, in one rename, by one that goes on blocking.
package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"gpu-dra-driver/pkg/plan"
)

// State is how far a claim has come.
type State string

const (
	// Intent: effects may have begun and none is promised.
	Intent State = "intent"
	// Committed: everything was done and the kubelet may have been told.
	Committed State = "committed"
	// Releasing: the undoing has begun and must be finished.
	Releasing State = "releasing"
	// Unknown: the record was unreadable and nothing else says what the claim holds.
	Unknown State = "unknown"
)

// Record is one claim's.
type Record struct {
	State State `json:"state"`
	// BootID is the boot in which the effects were made; in another boot they are gone.
	BootID string `json:"bootID"`
	// Renews is, of an intent that follows a commit of an earlier boot, that boot's ID. What comes of the intent, the
	// devices stay the claim's.
	Renews string    `json:"renews,omitempty"`
	Plan   plan.Plan `json:"plan"`
}

// Version is the format's. A file of a higher one is not read.
const Version = 1

type header struct {
	Kind    string `json:"kind"`
	Version int    `json:"version"`
	SHA256  string `json:"sha256"`
}

const (
	kind    = "gpu-dra-driver/claim"
	gpuKind = "gpu-dra-driver/gpu"
)

// ErrUnreadable marks a file that is there and is no record.
var ErrUnreadable = errors.New("record is not readable")

func Encode(r Record) ([]byte, error) { return seal(kind, r) }

// seal gives a payload's file.
func seal(kind string, payload any) ([]byte, error) {
	data, err := json.Marshal(payload)
	if err != nil {
		return nil, fmt.Errorf("encode the record: %w", err)
	}
	sum := sha256.Sum256(data)
	head, _ := json.Marshal(header{kind, Version, hex.EncodeToString(sum[:])}) // Strings and numbers always encode.
	return append(append(append(head, '\n'), data...), '\n'), nil
}

// unseal reads a payload out of its file. Errors wrap ErrUnreadable.
func unseal(data []byte, kind string, payload any) error {
	first, rest, ok := bytes.Cut(data, []byte{'\n'})
	if !ok {
		return unreadable("truncated")
	}
	var head header
	if err := json.Unmarshal(first, &head); err != nil || head.Kind != kind {
		return unreadable("not a record of this driver")
	}
	if head.Version != Version {
		return unreadable("version %d, this driver reads %d", head.Version, Version)
	}
	content, ok := bytes.CutSuffix(rest, []byte{'\n'})
	if !ok {
		return unreadable("truncated")
	}
	sum := sha256.Sum256(content)
	if hex.EncodeToString(sum[:]) != head.SHA256 {
		return unreadable("checksum does not match")
	}
	if err := json.Unmarshal(content, payload); err != nil {
		return unreadable("payload is not a record")
	}
	return nil
}

func unreadable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrUnreadable, fmt.Errorf(format, args...))
}

// Decode reads a record's file; uid is the claim its name says. Errors wrap ErrUnreadable.
func Decode(data []byte, uid string) (Record, error) {
	var r Record
	if err := unseal(data, kind, &r); err != nil {
		return Record{}, err
	}
	switch r.State {
	case Intent, Committed, Releasing, Unknown:
	default:
		return Record{}, unreadable("state %q is not known", r.State)
	}
	if r.Plan.Claim.UID != uid {
		return Record{}, unreadable("names claim %q, the file is %q's", r.Plan.Claim.UID, uid)
	}
	return r, nil
}
