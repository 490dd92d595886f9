// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package mpsd is what the kubelet plugin and the supervisor of MPS daemons say to each other: JSON over HTTP on a unix
// socket, which only root can open. The supervisor outlives the plugin, so either side can be of an older version: fields
// are only ever added.
package mpsd

import (
	"fmt"
	"regexp"
	"time"
)

// SocketName is the supervisor's socket in the directory of the daemons.
const SocketName = "supervisor.sock"

// Daemon is an MPS control daemon as it should be.
type Daemon struct {
	// Name is the device's, and the name of its directory.
	Name string `json:"name"`
	// UUID is the GPU's or the MIG device's.
	UUID string `json:"uuid"`
	// MemoryLimit is what each client may allocate, in bytes, unless it is told less; 0: all there is.
	MemoryLimit uint64 `json:"memoryLimit,omitempty"`
	// Threads is the part of the SMs each client may use, in percent, unless it is told less; 0: all.
	Threads int `json:"threads,omitempty"`
	// Users is "many" for a daemon that must serve several users at once, "one" for one that must not, empty for one that
	// does where the driver can.
	Users string `json:"users,omitempty"`
}

// Status is a daemon as it is.
type Status struct {
	Daemon
	// PID is its process as the supervisor sees it, 0 while it does not run.
	PID int `json:"pid,omitempty"`
	// Since is when it was ready; zero while it is not.
	Since time.Time `json:"since,omitzero"`
	// Restarts counts how often it died and was started again: what its clients computed was lost each time.
	Restarts int `json:"restarts,omitempty"`
	// ManyUsers says that it serves several users at once.
	ManyUsers bool `json:"manyUsers,omitempty"`
	// Problem says why it does not run, or why it ended last.
	Problem string `json:"problem,omitempty"`
}

// List is the answer to a question for all daemons. Version changes with any of them.
type List struct {
	Version string   `json:"version"`
	Daemons []Status `json:"daemons"`
}

var (
	nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	uuidForm = regexp.MustCompile(`^(GPU|MIG)-[0-9a-zA-Z/-]{1,80}$`)
)

// Validate refuses what must not become a path, an argument or a line of a command.
func (d Daemon) Validate() error {
	switch {
	case !nameForm.MatchString(d.Name):
		return fmt.Errorf("name: %q is no device's name", d.Name)
	case !uuidForm.MatchString(d.UUID):
		return fmt.Errorf("uuid: %q is no UUID of a GPU or MIG device", d.UUID)
	case d.Threads < 0 || d.Threads > 100:
		return fmt.Errorf("threads: %d is not a percentage", d.Threads)
	case d.MemoryLimit != 0 && d.MemoryLimit < 1<<20:
		return fmt.Errorf("memoryLimit: %d bytes is less than 1 MiB", d.MemoryLimit)
	case d.Users != "" && d.Users != "one" && d.Users != "many":
		return fmt.Errorf("users: %q is neither one nor many", d.Users)
	}
	return nil
}
