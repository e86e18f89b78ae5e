// Compression across several hosts: gradients are summed within each host
// through shared memory, the sums are compressed and exchanged between hosts
// only, and the results are shared within each host.
//
// Let K be the number of ranks of the smallest host. Each of the first K ranks
// of a host exchanges some of a bucket's parameters, with the ranks of the same
// index on the other hosts. Parameters are not split, because residuals and
// factors belong to whole parameters.
//
// After DDP rebuilds its buckets or a state is loaded, a rank may hold the
// residual of a parameter that another rank of its host exchanges. The holder
// adds the residual to its own gradient, so that the residual is part of the
// host's sum.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tune/compress/bucket.h"
#include "tune/compress/compressor.h"
#include "tune/shm/slices.h"
#include "tune/shm/team.h"

namespace commprof::compress {

// Splits the bucket into one range of values per owner, the rank of this host
// that exchanges the range. Ranges consist of whole slots and are as equal as
// the slots allow.
std::vector<shm::Slice> wholeSlots(std::span<const Slot> slots, int owners);

// Not thread-safe.
class HostStage {
 public:
  // `world`: number of ranks on all `hosts`.
  HostStage(std::shared_ptr<shm::Team> team, int owners, int hosts, int world);

  // Leaves the mean over all ranks in the bucket, as Compressor::run(); blocks.
  // `transport` connects the ranks of this index on all hosts; null if the
  // smallest host has too few ranks for this index. An exception ends the stage
  // for all ranks of this host.
  void run(
      Compressor& compressor,
      const Bucket& bucket,
      Transport* transport,
      BucketReport& report);

  // Ends the stage for this host, because this rank exchanges nothing more.
  void abandon(const std::string& why) noexcept;

 private:
  // Returns the part of the host's sum that this rank exchanges, or an empty
  // one. The part is scaled so that the mean over hosts is the mean over ranks.
  Bucket addUp(
      Compressor& compressor,
      const Bucket& bucket,
      BucketReport& report);
  void handOver(Compressor& compressor, const Bucket& bucket, const Slot& slot);
  void share(const Bucket& bucket, BucketReport& report);
  // Restores the residuals if the bucket became NaN.
  void takeBack(Compressor& compressor, const Bucket& bucket);

  const std::shared_ptr<shm::Team> team_;
  const int owners_;
  const float scale_;
  std::vector<shm::Slice> slices_;
  std::vector<Slot> slots_; // slots of this rank's part
  // Residuals of this bucket that were added to the gradient.
  std::vector<std::pair<Slot, std::vector<float>>> handed_over_;
};

} // namespace commprof::compress
