// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodetemplate

import (
	_ "embed" // The table.
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// instances has a line for each instance type: its name, a board with the same model of GPU, and the number of its GPUs. The
// numbers and models come from the pages of the providers: docs.aws.amazon.com/ec2/latest/instancetypes/ac.html,
// docs.cloud.google.com/compute/docs/accelerator-optimized-machines and learn.microsoft.com/azure/virtual-machines/sizes/overview.
//
//go:embed instances.tsv
var instances string

// Instance is an instance type of a cloud.
type Instance struct {
	Name, Board string
	// GPUs is at most the number of the board's GPUs.
	GPUs int
}

// Instances lists the catalogue of instance types, sorted by name.
func Instances() (out []Instance) {
	for line := range strings.Lines(instances) {
		cells := strings.Split(strings.TrimSpace(line), "\t")
		count, _ := strconv.Atoi(cells[2]) // A test reads each line.
		out = append(out, Instance{cells[0], cells[1], count})
	}
	slices.SortFunc(out, func(a, b Instance) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// FromInstance predicts a node of an instance type, without a settings file.
func FromInstance(name, driver, node string) (Template, error) {
	all := Instances()
	at := slices.IndexFunc(all, func(i Instance) bool { return strings.EqualFold(i.Name, name) })
	if at < 0 {
		return Template{}, fmt.Errorf("instance type %q is not known: docs/reference/boards.md lists those that are; --board takes a board with the same GPUs", name)
	}
	s, err := load(all[at].Board)
	if err != nil {
		return Template{}, err
	}
	if all[at].GPUs < len(s.GPUs) {
		s.GPUs = s.GPUs[:all[at].GPUs]
	}
	out := predicted(s, driver, node)
	out.Assumptions = append([]string{fmt.Sprintf(
		"the instance has %d GPUs of the model of board %s; PCI addresses, NUMA nodes and NVLinks are that board's, not the instance's",
		len(s.GPUs), all[at].Board)}, out.Assumptions...)
	return out, nil
}
