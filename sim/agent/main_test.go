// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"gpu-dra-driver/internal/boxtest"
)

func TestMain(m *testing.M) { boxtest.Main(m) }
