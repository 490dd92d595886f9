// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Loopback brings up the loopback device and adds addresses to it. Every pod reaches such an address through its
// gateway, without any address translation.
func Loopback(addresses ...string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := setFlags(fd, "lo", unix.IFF_UP|unix.IFF_RUNNING|unix.IFF_LOOPBACK); err != nil {
		return fmt.Errorf("bring up the loopback device: %w", err)
	}
	for i, a := range addresses {
		ip, err := netip.ParseAddr(a)
		if err != nil {
			return err
		}
		label := fmt.Sprintf("lo:%d", i+1)
		if err := setAddress(fd, label, unix.SIOCSIFADDR, ip); err != nil {
			return fmt.Errorf("add %s to the loopback device: %w", a, err)
		}
		// The class of an address implies a network; only the address itself is ours.
		if err := setAddress(fd, label, unix.SIOCSIFNETMASK, netip.AddrFrom4([4]byte{255, 255, 255, 255})); err != nil {
			return fmt.Errorf("narrow %s to one address: %w", a, err)
		}
	}
	return nil
}

func setFlags(fd int, name string, flags uint16) error {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	req.SetUint16(flags)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}

func setAddress(fd int, name string, request uint, ip netip.Addr) error {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := req.SetInet4Addr(ip.AsSlice()); err != nil {
		return err
	}
	return unix.IoctlIfreq(fd, request, req)
}
