// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package notify_test

import (
	"testing"

	"gpu-dra-driver/internal/notify"
)

func TestNewest_SeveralValues_LastIsTakenOnce(t *testing.T) {
	n := notify.NewNewest[string]()
	if v, ok := n.Take(); ok {
		t.Errorf("%q was taken before a Put", v)
	}
	n.Put("first")
	n.Put("last")
	<-n.Changed
	if v, ok := n.Take(); !ok || v != "last" {
		t.Errorf("Take returns %q, %v", v, ok)
	}
	select {
	case <-n.Changed:
		t.Error("two values were notified one by one")
	default:
	}
	if v, ok := n.Take(); ok {
		t.Errorf("%q was taken twice", v)
	}
}
