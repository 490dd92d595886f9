// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command dashboards writes the chart's Grafana dashboards. board.go has their form, panels.go their content.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: dashboards DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "dashboards:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	for _, d := range dashboards {
		data, err := json.MarshalIndent(d.grafana(), "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, d.name+".json"), append(data, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}
