// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/internal/host"
)

const (
	labelMkdir      host.Label = "record.mkdir"
	LabelIntent     host.Label = "record.intent"
	LabelCommit     host.Label = "record.commit"
	labelUndo       host.Label = "record.undo"
	labelUnknown    host.Label = "record.unknown"
	labelRemove     host.Label = "record.remove"
	labelConfirm    host.Label = "record.confirm"
	labelQuarantine host.Label = "record.quarantine"
)

var labels = map[State]host.Label{
	Intent: LabelIntent, Committed: LabelCommit, Unknown: labelUnknown,
}

// Store keeps records in a directory: claims/ for readable ones, unknown/ for the state Unknown, so that one listing
// shows whether there are any, and quarantine/ for unreadable files.
type Store struct {
	host                        *host.Host
	claims, unknown, quarantine string
}

// A record with undoSuffix is an intent, whichever state is in the file: a full disk allows a rename, but no write.
const suffix, undoSuffix = ".json", ".undo"

func Open(h *host.Host, dir string) (*Store, error) {
	s := &Store{h, filepath.Join(dir, "claims"), filepath.Join(dir, "unknown"), filepath.Join(dir, "quarantine")}
	if err := h.MkdirAll(labelMkdir, 0o700, s.claims, s.unknown, s.quarantine); err != nil {
		return nil, fmt.Errorf("make the record directories in %s: %w", dir, err)
	}
	return s, nil
}

func file(dir, uid string) string { return filepath.Join(dir, uid+suffix) }

// Stamp is a state of the record directories. Each write, move and removal of a record changes a name in one of them,
// and so the kernel's time of that directory. Unlike its modification time, no program can set that.
type Stamp [2]FileStamp

// Stamp returns the present state.
func (s *Store) Stamp() (stamp Stamp, err error) {
	for i, dir := range []string{s.claims, s.unknown} {
		if stamp[i], err = stampOf(dir); err != nil {
			return stamp, fmt.Errorf("look at the records: %w", err)
		}
	}
	return stamp, nil
}

// Settled reports whether a change after now has another stamp. now is at most the time of the stamp.
func (s Stamp) Settled(now time.Time) bool { return s[0].Settled(now) && s[1].Settled(now) }

// FileStamp is a state of a file or directory.
type FileStamp struct {
	device, inode uint64
	changed       unix.Timespec
}

// FileStamp returns the present state of the file of a claim's record. A record in another file is fs.ErrNotExist.
func (s *Store) FileStamp(uid string) (FileStamp, error) { return stampOf(file(s.claims, uid)) }

func stampOf(path string) (FileStamp, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return FileStamp{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return FileStamp{st.Dev, st.Ino, st.Ctim}, nil
}

// granularity is more than the finest difference of a file's times: ticks of some milliseconds, or whole seconds.
const granularity = 2 * time.Second

// Settled reports whether a change after now has another stamp: the last one was not so shortly before now that both
// can have one time. now is at most the time of the stamp. After the clock was set back, times can repeat.
func (s FileStamp) Settled(now time.Time) bool {
	return now.Sub(time.Unix(s.changed.Unix())).Abs() >= granularity
}

// Get reads a claim's record. A missing one is fs.ErrNotExist, a damaged one ErrUnreadable.
func (s *Store) Get(uid string) (Record, error) {
	if !ValidUID(uid) {
		return Record{}, fmt.Errorf("claim UID %q: %w", uid, fs.ErrNotExist)
	}
	// Without the claim's lock the record can move meanwhile. It is in the new directory before it leaves the old one.
	var data []byte
	var err error
	path := ""
	for _, path = range append(s.files(uid), file(s.claims, uid)) {
		if data, err = read(s.host, path); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	var r Record
	if err == nil {
		r, err = Decode(data, uid)
	}
	if err != nil {
		return Record{}, fmt.Errorf("read the record of claim %s: %w", uid, err)
	}
	if path == s.undo(uid) {
		r.State, r.Renews = Intent, ""
	}
	return r, nil
}

// read reads a record's file. A bad sector stays unreadable, and its claim must be able to end.
func read(h *host.Host, path string) ([]byte, error) {
	data, err := h.ReadFile(path)
	if errors.Is(err, syscall.EIO) {
		err = fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return data, err
}

func (s *Store) undo(uid string) string { return filepath.Join(s.claims, uid+undoSuffix) }

// files are the paths of a claim's record, newest first if a crash left two.
func (s *Store) files(uid string) []string {
	return []string{file(s.claims, uid), file(s.unknown, uid), s.undo(uid)}
}

// Undo durably turns a claim's committed record into an intent, before its effects are undone. It writes no file. The
// caller holds the claim's lock.
func (s *Store) Undo(uid string) error {
	err := s.host.Rename(labelUndo, file(s.claims, uid), s.undo(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // It is one already, but unreadable.
	}
	return err
}

// Put writes a claim's record durably, except for an intent that replaces no commit: its effects end with the boot, so
// a power cut may lose it. It must not leave an incomplete file, which would block the node's GPUs. The caller holds
// the claim's lock.
func (s *Store) Put(r Record) error {
	uid := r.Plan.Claim.UID
	if !ValidUID(uid) {
		return fmt.Errorf("write the record of claim %q: the UID is not a valid file name", uid)
	}
	data, err := encode(r)
	if err != nil {
		return err
	}
	to, other := s.claims, s.unknown
	if r.State == Unknown {
		to, other = s.unknown, s.claims
	}
	write := s.host.WriteDurable
	if r.State == Intent && r.Renews == "" {
		write = s.host.WriteComplete
	}
	if err := write(labels[r.State], file(to, uid), data, 0o600); err != nil {
		return err
	}
	return s.host.Remove(labelRemove, file(other, uid))
}

// Remove removes a claim's record and unfinished writes of it. A missing record is not an error.
func (s *Store) Remove(uid string) error {
	if err := s.RemoveUnfinished(uid); err != nil {
		return err
	}
	return s.each(uid, s.host.Remove)
}

// RemoveUnfinished removes unfinished writes of a claim's record. The caller holds the claim's lock.
func (s *Store) RemoveUnfinished(uid string) error { return s.each(uid, s.host.RemoveUnfinished) }

// each calls remove for a claim's files. A crash in between must not leave only the record of state Unknown.
func (s *Store) each(uid string, remove func(host.Label, string) error) error {
	if !ValidUID(uid) {
		return nil
	}
	for _, path := range []string{file(s.unknown, uid), file(s.claims, uid), s.undo(uid)} {
		if err := remove(labelRemove, path); err != nil {
			return err
		}
	}
	return nil
}

// Confirm syncs the records' directory: a process can end between writing a record and syncing its name.
func (s *Store) Confirm() error { return s.host.SyncDir(labelConfirm, s.claims) }

// SetAside links a damaged record into quarantine for inspection. The record keeps its name until the caller replaces
// it; meanwhile another call returns the same link.
func (s *Store) SetAside(uid string) (string, error) {
	err := fs.ErrNotExist
	for _, path := range s.files(uid) {
		name := strings.TrimSuffix(filepath.Base(path), suffix)
		for n := 1; errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist); n++ {
			aside := filepath.Join(s.quarantine, fmt.Sprintf("%s.%d", name, n)) // A time may repeat.
			err = s.host.Link(labelQuarantine, path, aside)
			if err == nil || errors.Is(err, fs.ErrExist) && sameFile(path, aside) {
				return aside, nil
			}
			if errors.Is(err, fs.ErrNotExist) {
				break
			}
		}
	}
	return "", fmt.Errorf("set the record of claim %s aside: %w", uid, err)
}

// Aside reads the damaged file of a record in the state Unknown. It succeeds if the disk reads the file again.
func (s *Store) Aside(unknown Record) (r Record, err error) {
	uid, name := unknown.Plan.Claim.UID, unknown.Aside
	if name == "" || filepath.Base(name) != name {
		return Record{}, fmt.Errorf("the damaged record of claim %s: %w", uid, fs.ErrNotExist)
	}
	data, err := read(s.host, filepath.Join(s.quarantine, name))
	if err == nil {
		r, err = Decode(data, uid)
	}
	if err == nil && r.State == Unknown {
		err = unreadable("it was unknown")
	}
	if err != nil {
		return Record{}, fmt.Errorf("read the damaged record of claim %s: %w", uid, err)
	}
	if strings.HasPrefix(name, uid+undoSuffix) {
		r.State, r.Renews = Intent, ""
	}
	return r, nil
}

func sameFile(a, b string) bool {
	is, err := os.Stat(a)
	other, otherErr := os.Stat(b)
	return err == nil && otherErr == nil && os.SameFile(is, other)
}

// UIDs lists the claims with a readable, unreadable or unfinished record, sorted.
func (s *Store) UIDs() ([]string, error) {
	var uids []string
	// A moving record is in the new directory before it leaves the old one.
	for _, dir := range []string{s.unknown, s.claims, s.unknown} {
		names, unfinished, err := s.host.List(dir)
		if err != nil {
			return nil, fmt.Errorf("list records: %w", err)
		}
		for _, name := range slices.Concat(names, unfinished) {
			uid := strings.TrimSuffix(strings.TrimSuffix(name, suffix), undoSuffix)
			if uid != name && ValidUID(uid) {
				uids = append(uids, uid)
			}
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids), nil
}

// Unknown lists the claims whose devices are unknown.
func (s *Store) Unknown() ([]string, error) {
	names, _, err := s.host.List(s.unknown)
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	var uids []string
	for _, name := range names {
		uid := strings.TrimSuffix(name, suffix)
		// A known record of the same claim is newer: a crash prevented the removal of this one.
		if r, err := s.Get(uid); !errors.Is(err, fs.ErrNotExist) && (err != nil || r.State == Unknown) {
			uids = append(uids, uid)
		}
	}
	return uids, nil
}

// All reads every readable record, and lists the UIDs of the others.
func (s *Store) All() (records []Record, unreadable []string, err error) {
	uids, err := s.UIDs()
	if err != nil {
		return nil, nil, err
	}
	for _, uid := range uids {
		r, err := s.Get(uid)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			unreadable = append(unreadable, uid)
		default:
			records = append(records, r)
		}
	}
	return records, unreadable, nil
}

func (s *Store) Quarantined() (int, error) {
	names, _, err := s.host.List(s.quarantine)
	return len(names), err
}

// ValidUID reports whether a UID is a safe file name. The API server creates RFC 4122 UUIDs.
func ValidUID(uid string) bool {
	if uid == "" || len(uid) > 128 {
		return false
	}
	return strings.Trim(uid, "-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}
