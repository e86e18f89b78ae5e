// Options checked and filled up.
#pragma once

#include <cstdint>
#include <memory>

#include "compress/compressor.h"
#include "compress/exchange/messages/wire.h"
#include "compress/schemes/scheme.h"

namespace commprof::compress {

struct Settings {
  SchemeCode scheme = SchemeCode::kNone;
  uint64_t ratio_ppb = 0; // topk: parts per billion, so that k is the
                          // same integer on all ranks
  int rank = 0; // powersgd
  bool feedback = false;
  uint64_t start_step = 0; // plain means before it
  bool checksum = false;
  uint64_t seed = 0;
  uint32_t measure_every = 0;
  size_t piece_bytes = 0;
  uint16_t hash = 0; // of all that must be the same on all ranks
};

// Throws std::invalid_argument, see Compressor::make().
Settings parseOptions(const Options& options);

// Null for "none".
std::unique_ptr<Scheme> makeScheme(const Settings& settings);

} // namespace commprof::compress
