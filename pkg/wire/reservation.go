// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/gpu"
)

// ReservedTaint is on all devices of a reserved GPU but its monitor. No claim gets one of them, until all devices are
// free that a preemption frees for a pod.
const ReservedTaint = "gpu.nvidia.com/reserved"

// MaxReservation is the longest time before its end for which a reservation counts. So a writer that is gone, or whose
// clock is wrong, takes no GPU out of use for longer.
const MaxReservation = 10 * time.Minute

// ReservationAnnotation returns the name of the annotation that reserves a GPU of a Node. Its value is the end, as in
// RFC 3339.
func ReservationAnnotation(driver, gpu string) string { return reservationPrefix(driver) + gpu }

func reservationPrefix(driver string) string { return "reserve." + driver + "/" }

// ReservationsOf returns the names of the GPUs for which a Node has the annotation, whatever its value.
func ReservationsOf(driver string, annotations map[string]string) (names []string) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if name, ours := strings.CutPrefix(key, reservationPrefix(driver)); ours {
			names = append(names, name)
		}
	}
	return names
}

// Reservations are the ends of the reservations of a node's GPUs, by PCI address.
type Reservations map[string]time.Time

// ParseReservations reads a Node's annotations. Those without the name of a GPU, or without a time, reserve nothing;
// the error names them.
func ParseReservations(driver string, annotations map[string]string) (Reservations, error) {
	out := Reservations{}
	var errs []error
	for _, name := range ReservationsOf(driver, annotations) {
		key := ReservationAnnotation(driver, name)
		d, err := gpu.ParseName(name)
		if err != nil || d.Kind != gpu.KindGPU {
			errs = append(errs, fmt.Errorf("annotation %s reserves nothing: %q is not the name of a GPU, such as "+
				"gpu-0000-1b-00-0", key, name))
			continue
		}
		until, err := time.Parse(time.RFC3339, annotations[key])
		if err != nil {
			errs = append(errs, fmt.Errorf("annotation %s reserves nothing: its value %q is not a time as in RFC 3339",
				key, annotations[key]))
			continue
		}
		out[d.PCIAddress] = until
	}
	return out, errors.Join(errs...)
}

// At returns the addresses of the GPUs that are reserved at a time, and when that changes next; the zero time if never.
func (r Reservations) At(now time.Time) (reserved sets.Set[string], next time.Time) {
	reserved = sets.New[string]()
	for address, until := range r {
		change := until.Add(-MaxReservation)
		if !now.Before(change) {
			if change = until; !now.Before(until) {
				continue
			}
			reserved.Insert(address)
		}
		if next.IsZero() || change.Before(next) {
			next = change
		}
	}
	return reserved, next
}
