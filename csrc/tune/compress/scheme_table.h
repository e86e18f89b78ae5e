// The compression schemes and their options. `make tables` writes
// commprof/tune/compressors/scheme_table.py from this file.
#pragma once

#include <cstdint>

namespace commprof::compress {

// Part of the messages between ranks: never renumber. 6 and 8 belonged to
// removed schemes, so the next new scheme gets 9.
enum class SchemeCode : uint8_t {
  kNone = 0,
  kHalf = 1,
  kBfloat16 = 2,
  kInt8 = 3,
  kInt4 = 4,
  kTopK = 5,
  kPowerSgd = 7,
};

// X(code, name, default of error feedback, meaning). The last scheme has the
// code of "none": it differs only in the caller's transport.
#define COMMPROF_SCHEMES(X)                                                   \
  X(None,                                                                     \
    "none",                                                                   \
    0,                                                                        \
    "fp32 all-reduce on the thread that compressors use: the baseline")       \
  X(Half,                                                                     \
    "fp16",                                                                   \
    0,                                                                        \
    "16 bits a value with a power-of-two scale, 2x fewer bytes")              \
  X(Bfloat16, "bf16", 0, "16 bits a value with fp32's range, 2x fewer bytes") \
  X(Int8,                                                                     \
    "int8",                                                                   \
    0,                                                                        \
    "8 bits a value, a scale per 128 values: 3.9x fewer bytes")               \
  X(Int4,                                                                     \
    "int4",                                                                   \
    1,                                                                        \
    "4 bits a value, a scale per 64 values: 7.1x fewer bytes")                \
  X(TopK, "topk", 1, "the largest values of each bucket, sent exactly")       \
  X(PowerSgd, "powersgd", 1, "two thin factors of each matrix (PowerSGD)")    \
  X(None,                                                                     \
    "hierarchical",                                                           \
    0,                                                                        \
    "fp32 averages: shared memory within hosts, gloo between hosts")

// X(code of the scheme with the option, name, minimum, maximum, default, whole
// numbers only, meaning). Options of None apply to all compressing schemes.
#define COMMPROF_SCHEME_OPTIONS(X)                                            \
  X(TopK, "ratio", 1e-9, 1, 0.01, false, "fraction of the values to send")    \
  X(PowerSgd, "rank", 1, 16, 4, true, "columns of the factors that are sent") \
  X(None,                                                                     \
    "feedback",                                                               \
    0,                                                                        \
    1,                                                                        \
    0,                                                                        \
    true,                                                                     \
    "1: values that were not sent are added to the next step's gradients")    \
  X(None,                                                                     \
    "start_step",                                                             \
    0,                                                                        \
    1e9,                                                                      \
    0,                                                                        \
    true,                                                                     \
    "first step with compression; earlier steps send uncompressed gradients") \
  X(None, "checksum", 0, 1, 0, true, "1: a CRC-32 with each message")         \
  X(None,                                                                     \
    "hierarchical",                                                           \
    0,                                                                        \
    1,                                                                        \
    0,                                                                        \
    true,                                                                     \
    "1: fp32 sums within each host, compression between hosts")

} // namespace commprof::compress
