// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"sync/atomic"

	"gpu-dra-driver/internal/nvml"
)

// answers are the answers of one GPU that altered can change.
type answers struct {
	pci, uuid string
	brand     nvml.Brand
}

// altered is a library whose GPUs give answers that no driver gives.
type altered struct {
	nvml.Library
	change func(index int, a *answers)
}

func (l altered) Open() (nvml.Session, error) {
	s, err := l.Library.Open()
	return alteredSession{s, l}, err
}

type alteredSession struct {
	nvml.Session
	altered
}

func (s alteredSession) Close() error { return s.Session.Close() }

func (s alteredSession) Device(index int) (nvml.Device, error) {
	d, err := s.Session.Device(index)
	if err != nil {
		return nil, err
	}
	pci, _ := d.PCI()
	uuid, _ := d.UUID()
	brand, _ := d.Brand()
	a := answers{pci.BusID, uuid, brand}
	s.change(index, &a)
	return alteredDevice{d, a}, nil
}

type alteredDevice struct {
	nvml.Device
	a answers
}

func (d alteredDevice) PCI() (nvml.PCIInfo, error) { return nvml.PCIInfo{BusID: d.a.pci}, nil }
func (d alteredDevice) UUID() (string, error)      { return d.a.uuid, nil }
func (d alteredDevice) Brand() (nvml.Brand, error) { return d.a.brand, nil }

// counting counts sessions. While hang is not nil, calls wait until it is closed.
type counting struct {
	nvml.Library
	hang           atomic.Pointer[chan struct{}]
	opened, closed atomic.Int32
	// replaced means that the driver was replaced since this process loaded its library.
	replaced atomic.Bool
}

func (c *counting) Open() (nvml.Session, error) {
	if hang := c.hang.Load(); hang != nil {
		<-*hang
	}
	if c.replaced.Load() {
		return nil, nvml.ErrReplaced
	}
	s, err := c.Library.Open()
	if err == nil {
		c.opened.Add(1)
	}
	return &countingSession{s, c}, err
}

type countingSession struct {
	nvml.Session
	c *counting
}

func (s *countingSession) Close() error {
	s.c.closed.Add(1)
	return s.Session.Close()
}
