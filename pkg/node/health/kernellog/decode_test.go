// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"strings"
	"testing"
)

func TestDecode_Lines_OnlyTheKernelsXIDsCount(t *testing.T) {
	const lost = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
	gpu1b := func(code uint64) XID { return XID{"0000:1b:00.0", code} }
	for line, want := range map[string]struct {
		sequence uint64
		xid      XID
	}{
		"3,339,5140900,-;" + lost:                                                   {339, gpu1b(79)},
		"3,339,5140900,-,caller=T812;" + lost:                                       {339, gpu1b(79)},
		"4,18446744073709551614,1,-;" + lost:                                        {18446744073709551614, gpu1b(79)},
		"3,7,1,-;NVRM: Xid (0000:1B:00): 62, 2a1":                                   {7, gpu1b(62)},
		"3,7,1,-;NVRM: Xid (PCI:0000:1b:00 GPU-I:05): 94, pid=8, name=a, Contained": {7, gpu1b(94)},
		"3,7,1,-;NVRM: Xid (PCI:0000:1b:00.0): 46, pid=8, name=a, (x): 79, Ch 1":    {7, gpu1b(46)},
		"3,7,1,-;NVRM: Xid (PCI:00000000:1b:00): 46":                                {7, gpu1b(46)},
		// Messages of programs have another facility than 0.
		"11,7,1,-;" + lost: {7, XID{}},
		"30,7,1,-;" + lost: {7, XID{}},
		// Fragments of lines.
		"3,7,1,c;" + lost: {7, XID{}},
		"3,7,1,+;" + lost: {7, XID{}},
		// Names of processes in the kernel's messages.
		"6,7,1,-;NVRM: Xid (PCI:[812]: segfault at 0 ip 0 sp 0 error 4": {7, XID{}},
		"6,7,1,-;python[812]: segfault, " + lost:                        {7, XID{}},
		"3,7,1,-;NVRM: Xid (PCI:0000:1b:00): 79x, pid=8":                {7, XID{}},
		"3,7,1,-;NVRM: Xid (PCI:0000:1b:00): 99999999999, pid=8":        {7, XID{}},
		"3,7,1,-;NVRM: Xid (PCI:0000:1b:00): 9999999999, pid=8":         {7, XID{}},
		"3,7,1,-;NVRM: Xid (PCI:......): 79, pid=8":                     {7, XID{}},
		"3,7,1,-;NVRM: GPU at PCI:0000:1b:00: GPU-0":                    {7, XID{}},
		"3,7,1,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non": {7, XID{}},
		"3,7,1,-;": {7, XID{}},
	} {
		m, ok := decode(line)
		if !ok || m.sequence != want.sequence || m.xid() != want.xid {
			t.Errorf("%q: %+v %+v, %v", line, m, m.xid(), ok)
		}
	}
	for _, line := range []string{
		"", ";", " SUBSYSTEM=pci", " DEVICE=3,7,1,-;" + lost, "3,7,1;" + lost, "3,-1,1,-;" + lost, "x,7,1,-;" + lost,
		"-3,7,1,-;" + lost, "3,99999999999999999999,1,-;" + lost, lost,
	} {
		if m, ok := decode(line); ok {
			t.Errorf("%q: %+v", line, m)
		}
	}
}

func TestLoads_DriverIsLoaded_AllModules(t *testing.T) {
	for text, want := range map[string]bool{
		"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024":             true,
		"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.126.09  Release Build  (dvs-builder@U)": true,
		"NVRM: Xid (PCI:0000:1b:00): 79": false,
		"a: NVRM: loading NVIDIA UNIX ":  false,
	} {
		if got := (message{text: text}).loads(); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// FuzzDecode checks that only the kernel's own messages have XIDs, and that an address is canonical.
func FuzzDecode(f *testing.F) {
	f.Add("3,339,5140900,-;NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
	f.Add("11,340,1,c,caller=T1;NVRM: Xid (0001:1B:00 GPU-I:05): 13")
	f.Add(" SUBSYSTEM=pci")
	f.Fuzz(func(t *testing.T, line string) {
		m, ok := decode(line)
		if !ok {
			return
		}
		x := m.xid()
		if x == (XID{}) {
			return
		}
		first, _, _ := strings.Cut(line, ",")
		if level := strings.TrimLeft(first, "0"); len(level) > 1 || level > "7" {
			t.Errorf("%q has %+v, although a program wrote it", line, x)
		}
		if again := (message{text: "NVRM: Xid (PCI:" + x.Address + "): 1"}).xid(); again.Address != x.Address || !strings.HasSuffix(x.Address[:len(x.Address)-1], ".") {
			t.Errorf("%q has the address %q", line, x.Address)
		}
	})
}
