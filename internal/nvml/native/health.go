// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"encoding/binary"
	"errors"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpu-dra-driver/internal/nvml"
)

func (d *device) Health() (nvml.Health, error) {
	const symbol = "nvmlDeviceGetFieldValues"
	fields := []gonvml.FieldValue{
		{FieldId: gonvml.FI_DEV_GET_GPU_RECOVERY_ACTION}, {FieldId: gonvml.FI_DEV_REMAPPED_FAILURE},
		{FieldId: gonvml.FI_DEV_REMAPPED_PENDING}, {FieldId: gonvml.FI_DEV_ECC_SBE_VOL_TOTAL},
		{FieldId: gonvml.FI_DEV_ECC_DBE_VOL_TOTAL}, {FieldId: gonvml.FI_DEV_REMAPPED_COR},
		{FieldId: gonvml.FI_DEV_REMAPPED_UNC},
	}
	if err := d.session.query(symbol, func() gonvml.Return { return d.handle.GetFieldValues(fields) }); err != nil {
		return nvml.Health{}, err
	}
	values := []int64{
		int64(nvml.RecoveryUnsupported), 0, 0, nvml.NotReported, nvml.NotReported, nvml.NotReported, nvml.NotReported,
	}
	for n := range fields {
		var err error
		if values[n], err = fieldValue(symbol, fields[n], values[n]); err != nil {
			return nvml.Health{}, err
		}
	}
	h := nvml.Health{
		Recovery:            nvml.RecoveryAction(values[0]),
		RemapFailed:         values[1] != 0,
		RemapPending:        values[2] != 0,
		CorrectableErrors:   values[3],
		UncorrectableErrors: values[4],
		CorrectableRows:     values[5],
		UncorrectableRows:   values[6],
	}
	var err error
	sram := optional(&err, d.session, "nvmlDeviceGetSramEccErrorStatus", d.handle.GetSramEccErrorStatus)
	h.SRAMThresholdExceeded = sram.BThresholdExceeded != 0
	memory := optional(&err, d.session, "nvmlDeviceGetUnrepairableMemoryFlag_v1", d.handle.GetUnrepairableMemoryFlag_v1)
	h.UnrepairableMemory = memory.BUnrepairableMemory != 0
	clocks := optional(&err, d.session, "nvmlDeviceGetCurrentClocksEventReasons", d.handle.GetCurrentClocksEventReasons)
	h.Slowdowns = nvml.Slowdown(clocks) & nvml.Slowdowns
	h.NoPersistence = optional(&err, d.session, "nvmlDeviceGetPersistenceMode", func() (bool, gonvml.Return) {
		mode, ret := d.handle.GetPersistenceMode()
		return mode == gonvml.FEATURE_DISABLED, ret
	})
	h.PCIeWidth = optional(&err, d.session, "nvmlDeviceGetCurrPcieLinkWidth", d.handle.GetCurrPcieLinkWidth)
	h.PCIeMaxWidth = optional(&err, d.session, "nvmlDeviceGetMaxPcieLinkWidth", d.handle.GetMaxPcieLinkWidth)
	if h.PCIeWidth < h.PCIeMaxWidth {
		h.Busy = optional(&err, d.session, "nvmlDeviceGetUtilizationRates", d.handle.GetUtilizationRates).Gpu > 0
	}
	return h, err
}

// optional is get for a fact of less weight: a GPU that cannot report it reports the zero value. failed keeps the error
// of a GPU that answers no query, after which no more queries are made.
func optional[T any](failed *error, q querier, symbol string, call func() (T, gonvml.Return)) (v T) {
	if *failed != nil {
		return v
	}
	v, err := get(q, symbol, call)
	if unusable(err) {
		*failed = err
	}
	return v
}

// fieldValue returns a number, or another one if the driver did not answer for the field, with whichever code: one odd
// field must not hide the others. Only the error of a GPU that answers no query is returned. Drivers report the same
// field with 32 or 64 bits.
func fieldValue(symbol string, f gonvml.FieldValue, without int64) (int64, error) {
	switch err := failed(symbol, gonvml.Return(f.NvmlReturn)); {
	case err == nil &&
		(f.ValueType == uint32(gonvml.VALUE_TYPE_UNSIGNED_LONG) ||
			f.ValueType == uint32(gonvml.VALUE_TYPE_UNSIGNED_LONG_LONG)):
		return int64(binary.NativeEndian.Uint64(f.Value[:])), nil
	case err == nil:
		return int64(binary.NativeEndian.Uint32(f.Value[:4])), nil
	case unusable(err):
		return 0, err
	default:
		return without, nil
	}
}

// unusable reports the errors of a GPU that answers no query.
func unusable(err error) bool {
	return errors.Is(err, nvml.GPUIsLost) || errors.Is(err, nvml.ResetRequired)
}
