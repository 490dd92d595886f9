// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRebinds_Messages_OnlyOfModulesAndPCIDevices(t *testing.T) {
	for message, want := range map[string]bool{
		"add@/module/nvidia|ACTION=add|DEVPATH=/module/nvidia|SUBSYSTEM=module|SEQNUM=4711|":                      true,
		"unbind@/devices/pci0000:15/0000:1b:00.0|ACTION=unbind|SUBSYSTEM=pci|PCI_SLOT_NAME=0000:1b:00.0|SEQNUM=2": true,
		"add@/devices/virtual/net/veth1|ACTION=add|SUBSYSTEM=net|INTERFACE=SUBSYSTEM=pci|SEQNUM=3|":               false,
		"change@/devices/pci0000:15/block/sda|ACTION=change|SUBSYSTEM=block|SEQNUM=4|":                            false,
		"": false,
	} {
		if got := rebinds([]byte(strings.ReplaceAll(message, "|", "\x00"))); got != want {
			t.Errorf("%q: %v, want %v", message, got, want)
		}
	}
}

// TestUevents_MessageOfModule_Calls sends messages in a network namespace of its own, where no other program listens.
func TestUevents_MessageOfModule_Calls(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls, sender, ended := make(chan struct{}, 1), make(chan int, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // Its thread ends with it.
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			var fd int
			fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
			sender <- fd
		}
		if err == nil {
			err = Uevents(ctx, func() {
				select {
				case calls <- struct{}{}:
				default:
				}
			})
		}
		ended <- err
	}()
	var fd int
	select {
	case fd = <-sender:
		defer func() { _ = unix.Close(fd) }()
	case err := <-ended:
		t.Fatal(err)
	}
	for received := false; !received; {
		// Nothing receives it before it listens.
		_ = unix.Sendto(fd, []byte("add@/module/nvidia\x00ACTION=add\x00SUBSYSTEM=module\x00"), 0,
			&unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1})
		select {
		case <-calls:
			received = true
		case err := <-ended:
			t.Fatal(err)
		default:
			runtime.Gosched()
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
