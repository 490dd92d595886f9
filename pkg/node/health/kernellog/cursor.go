// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"bytes"
	"errors"
	"io/fs"

	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/record"
)

const kind = "gpu-dra-driver/kernellog"

// cursor holds the position of the first message whose XID health may not know.
type cursor struct {
	BootID string `json:"bootID"`
	// Next is a sequence number of the kernel's log, which begins at 0 with each boot.
	Next uint64 `json:"next"`
	// Waiting are the earlier XIDs of GPUs that cannot be read.
	Waiting []XID `json:"waiting,omitempty"`
}

// load returns the position of this boot. ok is false on the first start, and if the file is unreadable: XIDs of
// unknown age could be of faults that were mended.
func (l *Log) load(boot string) (c cursor, ok bool) {
	begin := cursor{BootID: boot}
	data, err := l.host.ReadFile(l.o.Cursor)
	if errors.Is(err, fs.ErrNotExist) {
		return begin, false
	}
	if err == nil {
		err = record.Unseal(data, kind, &c)
	}
	if err != nil {
		l.o.Reports.Report(&claimerror.Error{
			Reason: claimerror.RecordUnreadable, Attempt: "find the XIDs since the plugin's last run", Cause: err,
			Remedy: "XIDs of before this start are not known; read the NVRM messages in the node's kernel log",
		})
		return begin, false
	}
	if c.BootID != boot {
		return begin, true // All messages of this boot are new.
	}
	return c, true
}

// save writes the position, except while a newer instance of the plugin does.
func (l *Log) save(now cursor) {
	if newest, err := l.o.Instance.Newest(); err != nil || !newest {
		return
	}
	data, err := record.Seal(kind, now)
	if bytes.Equal(data, l.saved) {
		return
	}
	if err == nil {
		err = l.host.WriteDurable(labelSave, l.o.Cursor, data, 0o640)
	}
	if err != nil {
		// The next start passes some XIDs on again, which does no harm.
		klog.Background().Error(err, "The position in the kernel's log is not saved; the next XID tries it again")
		return
	}
	l.saved = data
}
