// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package record stores the effects of each claim: one file a claim, named by the claim's UID. Restarts rely on it.
//
// A file has two lines: a header with version and checksum, and the payload. The checksum covers the payload's bytes,
// so an older version accepts fields that a later version adds.
//
// Traps. An unreadable record does not mean "no record": its claim may hold devices. SetAside links it into quarantine;
// then one rename replaces it by a record that keeps blocking.
package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"gpu-dra-driver/pkg/claim/plan"
)

// State is a claim's progress.
type State string

const (
	// Intent: some effects may exist. The driver makes them or undoes them.
	Intent State = "intent"
	// Committed: all effects exist, and the kubelet may know of them.
	Committed State = "committed"
	// Unknown: the record was unreadable, and no other source shows the claim's devices.
	Unknown State = "unknown"
)

type Record struct {
	State State `json:"state"`
	// BootID is the boot of the effects; they do not exist in another boot.
	BootID string `json:"bootID"`
	// Renews is the boot ID of the commit that this intent replaces. The devices stay the claim's even if the
	// intent fails.
	Renews string    `json:"renews,omitempty"`
	Plan   plan.Plan `json:"plan"`
	// Aside is the name of the damaged file in quarantine, for the state Unknown.
	Aside string `json:"aside,omitempty"`
}

// formatVersion is the version of the format. A file with another one is unreadable.
const formatVersion = 1

type header struct {
	Kind    string `json:"kind"`
	Version int    `json:"version"`
	SHA256  string `json:"sha256"`
}

const (
	kind    = "gpu-dra-driver/prepared-claim"
	gpuKind = "gpu-dra-driver/gpu"
)

// ErrUnreadable means that the file exists but is not a valid record.
var ErrUnreadable = errors.New("record is not readable")

func encode(r Record) ([]byte, error) { return Seal(kind, r) }

// Seal encodes a payload as a record file.
func Seal(kind string, payload any) ([]byte, error) {
	data, err := json.Marshal(payload)
	if err != nil {
		return nil, fmt.Errorf("encode the record: %w", err)
	}
	sum := sha256.Sum256(data)
	// Strings and numbers always encode.
	head, _ := json.Marshal(header{kind, formatVersion, hex.EncodeToString(sum[:])})
	return append(append(append(head, '\n'), data...), '\n'), nil
}

// Unseal decodes a record file. Errors wrap ErrUnreadable.
func Unseal(data []byte, kind string, payload any) error {
	first, rest, ok := bytes.Cut(data, []byte{'\n'})
	if !ok {
		return unreadable("truncated")
	}
	var head header
	if err := json.Unmarshal(first, &head); err != nil || head.Kind != kind {
		return unreadable("not a record of this driver")
	}
	if head.Version != formatVersion {
		return unreadable("it has version %d, but this driver reads version %d", head.Version, formatVersion)
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

// Decode reads a claim's record file. Errors wrap ErrUnreadable.
func Decode(data []byte, uid string) (Record, error) {
	var r Record
	if err := Unseal(data, kind, &r); err != nil {
		return Record{}, err
	}
	switch r.State {
	case Intent, Committed, Unknown:
	default:
		return Record{}, unreadable("state %q is not known", r.State)
	}
	if r.Plan.Claim.UID != uid {
		return Record{}, unreadable("it names claim %q, but the file name says %q", r.Plan.Claim.UID, uid)
	}
	return r, nil
}
