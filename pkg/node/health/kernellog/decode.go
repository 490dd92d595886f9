// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"regexp"
	"strconv"
	"strings"

	"gpu-dra-driver/pkg/gpu"
)

// message is a message of the kernel's log.
// https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg
type message struct {
	sequence uint64
	// text is empty for messages of programs and for fragments of lines.
	text string
}

// decode reads a line of /dev/kmsg. ok is false for other lines, such as the properties that follow a message.
func decode(line string) (m message, ok bool) {
	head, text, ok := strings.Cut(line, ";")
	fields := strings.Split(head, ",")
	if !ok || len(fields) < 4 {
		return message{}, false
	}
	priority, err := strconv.ParseUint(fields[0], 10, 32)
	if err != nil {
		return message{}, false
	}
	if m.sequence, err = strconv.ParseUint(fields[1], 10, 64); err != nil {
		return message{}, false
	}
	// The kernel gives its own messages the facility 0, and never those that programs write.
	const kernelLevels = 8
	if priority < kernelLevels && fields[3] == "-" {
		m.text = text
	}
	return m, true
}

// xidForm matches an XID. The rest of the line has the process's name, which a user chooses.
var xidForm = regexp.MustCompile(`^NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{4,20})(?: [^)]*)?\): ([0-9]{1,10})(?:,|$)`)

// xid returns the XID of a message. The zero XID means that it has none.
func (m message) xid() XID {
	found := xidForm.FindStringSubmatch(m.text)
	if found == nil {
		return XID{}
	}
	address, err := gpu.CanonicalAddress(found[1])
	if err != nil {
		return XID{}
	}
	code, err := strconv.ParseUint(found[2], 10, 32)
	if err != nil {
		return XID{}
	}
	return XID{Address: address, Code: code}
}

// loads reports whether the driver was loaded, which ends the faults of XIDs.
func (m message) loads() bool { return strings.HasPrefix(m.text, "NVRM: loading NVIDIA UNIX ") }
