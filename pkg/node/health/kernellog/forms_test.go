// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/formtest"
	"gpu-dra-driver/pkg/claim/record"
)

// TestCursor_EarlierForms_AreRead reads the positions that earlier releases wrote.
func TestCursor_EarlierForms_AreRead(t *testing.T) {
	want := formtest.Fill[cursor]()
	written, err := record.Seal(kind, want)
	if err != nil {
		t.Fatal(err)
	}
	var payloads [][]byte
	for _, data := range formtest.Files(t, "1", "kernellog.json", written) {
		var got cursor
		err := record.Unseal(data, kind, &got)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		_, payload, _ := bytes.Cut(data, []byte("\n"))
		payloads = append(payloads, payload)
	}
	formtest.Check[cursor](t, payloads...)
}
