// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

func example() Record {
	return Record{
		State: Committed, BootID: "boot-1",
		Plan: plan.Plan{
			Claim: plan.Claim{Namespace: "default", Name: "c", UID: "1111"}, Digest: "abcd",
			Devices: []plan.Device{{
				Request: "r/s", Pool: "node-1/gpu", Name: "gpu-0000-1b-00-0", Kind: gpu.KindGPU,
				PCIAddress: "0000:1b:00.0", UUID: "GPU-1", Minor: 3,
			}},
			Steps: []plan.Step{{Executor: "x", PCIAddress: "0000:1b:00.0", Spec: json.RawMessage(`{"a":1}`)}},
		},
	}
}

// golden is the file that every later version must read.
const golden = `{"kind":"gpu-dra-driver/prepared-claim","version":1,"sha256":"%s"}
{"state":"committed","bootID":"boot-1","plan":{"claim":{"namespace":"default","name":"c","uid":"1111"},"allocation":"abcd","devices":[{"request":"r/s","pool":"node-1/gpu","name":"gpu-0000-1b-00-0","kind":"gpu","pciAddress":"0000:1b:00.0","uuid":"GPU-1","minor":3}],"steps":[{"executor":"x","pciAddress":"0000:1b:00.0","spec":{"a":1}}]}}
`

// sealed makes a file of a payload, with the right checksum.
func sealed(payload string) string {
	sum := sha256.Sum256([]byte(payload))
	return fmt.Sprintf(`{"kind":"gpu-dra-driver/prepared-claim","version":1,"sha256":"%s"}`, hex.EncodeToString(sum[:])) + "\n" + payload + "\n"
}

func TestEncode_EarlierVersion_IsTheSame(t *testing.T) {
	data, err := encode(example())
	if err != nil {
		t.Fatal(err)
	}
	const sum = "50be7486da80865bbf12edd7569acbf99da1baa5fb8669203c2774ab9fcabc10"
	want := strings.Replace(golden, "%s", sum, 1)
	if d := cmp.Diff(want, string(data)); d != "" {
		t.Error(d)
	}
	got, err := Decode([]byte(want), "1111")
	if d := cmp.Diff(example(), got); d != "" || err != nil {
		t.Error(d, err)
	}
}

// TestDecode_KeysBeforeRenaming_AreUnreadable reads a file whose plan has the keys of before their renaming. Unknown fields
// are ignored, so only the file's other kind keeps their values from being lost.
func TestDecode_KeysBeforeRenaming_AreUnreadable(t *testing.T) {
	data, err := os.ReadFile("testdata/early-keys.json")
	if err != nil {
		t.Fatal(err)
	}
	if r, err := Decode(data, "a"); !errors.Is(err, ErrUnreadable) {
		t.Errorf("it is read as %+v, %v", r, err)
	}
}

func TestDecode_AddedFields_AreIgnored(t *testing.T) {
	_, payload, _ := strings.Cut(golden, "\n")
	payload = strings.Replace(strings.TrimSpace(payload), `"bootID"`, `"later":{"x":[1]},"bootID"`, 1)
	payload = strings.Replace(payload, `"minor":3`, `"minor":3,"lane":"1g"`, 1)
	got, err := Decode([]byte(sealed(payload)), "1111")
	if d := cmp.Diff(example(), got); d != "" || err != nil {
		t.Error(d, err)
	}
	head, rest, _ := strings.Cut(sealed(payload), "\n")
	head = strings.Replace(head, "{", `{"writer":"9.9",`, 1)
	if _, err := Decode([]byte(head+"\n"+rest), "1111"); err != nil {
		t.Error("field in the header:", err)
	}
}

func TestDecode_DamagedFile_ReturnsErrUnreadable(t *testing.T) {
	whole, err := encode(example())
	if err != nil {
		t.Fatal(err)
	}
	text := string(whole)
	for name, test := range map[string]struct{ data, uid, says string }{
		"empty":                    {"", "1111", "truncated"},
		"header only":              {text[:strings.Index(text, "\n")+1], "1111", "truncated"},
		"last byte missing":        {text[:len(text)-1], "1111", "truncated"},
		"a bit turned":             {strings.Replace(text, "boot-1", "boot-0", 1), "1111", "checksum"},
		"something appended":       {text + "x\n", "1111", "checksum"},
		"later version":            {strings.Replace(text, `"version":1`, `"version":2`, 1), "1111", "version 2"},
		"no version":               {strings.Replace(text, `"version":1,`, ``, 1), "1111", "version 0"},
		"another program's":        {strings.Replace(text, "gpu-dra-driver", "other", 1), "1111", "not a record"},
		"noise":                    {"\x00\x01\n\n", "1111", "not a record"},
		"another claim's":          {text, "2222", `names claim "1111"`},
		"state from the future":    {sealed(`{"state":"paused","plan":{"claim":{"uid":"1111"}}}`), "1111", `"paused"`},
		"payload of another shape": {sealed(`[]`), "1111", "payload"},
		"payload not JSON":         {sealed(`x`), "1111", "payload"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode([]byte(test.data), test.uid)
			if !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %q", err, test.says)
			}
			if err != nil && strings.Contains(err.Error(), "Go value") {
				t.Error("names a Go type:", err)
			}
		})
	}
	for i := range whole[:len(whole)-1] {
		if _, err := Decode(whole[:i], "1111"); !errors.Is(err, ErrUnreadable) {
			t.Fatalf("the first %d bytes of %d were read as whole", i, len(whole))
		}
	}
}

func FuzzDecode(f *testing.F) {
	whole, _ := encode(example())
	f.Add(whole)
	f.Add([]byte(sealed(`{"state":"intent","plan":{"claim":{"uid":"1111"},"devices":null}}`)))
	f.Add([]byte("{}\n{}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Decode(data, "1111")
		if err != nil {
			if !errors.Is(err, ErrUnreadable) {
				t.Fatal(err)
			}
			return
		}
		again, err := encode(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(again, "1111"); err != nil {
			t.Fatal(err)
		}
	})
}
