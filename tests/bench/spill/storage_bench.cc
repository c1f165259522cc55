// luwu-storage-bench FOLDER [extents|rocksdb_values] [pass MiB] [shard MiB] [rounds]: passes of one
// engine next to the raw device, alternating within each round; medians of times and of ratios.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "tests/bench/spill/raw_device.h"
#include "tests/bench/spill/storage_passes.h"

namespace luwu::bench {
namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

using PassCall = std::function<StatusOr<double>()>;

struct Compared {
  const char* name;
  PassCall raw;
  PassCall engine;
};

Status Compare(const Compared& compared, uint64_t bytes, int rounds) {
  std::vector<double> raw_s, engine_s, ratios;
  for (int round = 0; round < rounds; ++round) {
    ASSIGN_OR_RETURN(const double raw, compared.raw());
    ASSIGN_OR_RETURN(const double engine, compared.engine());
    raw_s.push_back(raw);
    engine_s.push_back(engine);
    ratios.push_back(raw / engine);
  }
  const double gb = static_cast<double>(bytes) / 1e9;
  std::printf("%-16s raw %.2f GB/s  engine %.2f GB/s  ratio %.3f (%.3f to %.3f)\n", compared.name,
              gb / Median(raw_s), gb / Median(engine_s), Median(ratios),
              *std::min_element(ratios.begin(), ratios.end()),
              *std::max_element(ratios.begin(), ratios.end()));
  return OkStatus();
}

Status Run(const std::vector<std::string>& arguments) {
  const auto number = [&](size_t i, uint64_t usual) {
    return arguments.size() > i ? std::strtoull(arguments[i].c_str(), nullptr, 10) : usual;
  };
  const bool values = arguments.size() > 1 && arguments[1] == "rocksdb_values";
  const uint64_t shard_bytes = number(3, 8) * kMiB;
  const uint64_t pass_bytes = number(2, 1024) * kMiB / shard_bytes * shard_bytes;
  const int rounds = static_cast<int>(number(4, 5));
  const std::string folder = arguments[0] + "/storage";
  std::filesystem::remove_all(folder);

  ASSIGN_OR_RETURN(const auto raw,
                   RawDevice::Create({.path = arguments[0] + "/raw", .pass_bytes = pass_bytes}));
  StoragePassesOptions options;
  options.storage.path = folder;
  options.storage.node_name = "bench";
  options.storage.engine = values ? persist::Engine::kRocksdbValues : persist::Engine::kExtents;
  options.shards = static_cast<uint32_t>(pass_bytes / shard_bytes);
  options.shard_bytes = shard_bytes;
  ASSIGN_OR_RETURN(const auto storage, StoragePasses::Create(options));
  std::printf("%u shards of %s, direct=%d\n", options.shards, HumanBytes(shard_bytes).c_str(),
              storage->Snapshot().direct);
  const std::vector<Compared> all = {
      {"overwrite", [&] { return raw->Overwrite(); }, [&] { return storage->Overwrite(); }},
      {"read", [&] { return raw->Read(); }, [&] { return storage->Read(); }},
      {"read and write", [&] { return raw->ReadAndWrite(); },
       [&] { return storage->ReadAndWrite(); }},
  };
  for (const Compared& compared : all) RETURN_IF_ERROR(Compare(compared, pass_bytes, rounds));
  const persist::StorageSnapshot snapshot = storage->Snapshot();
  std::printf("commit %.1f ms, space %.2f x\n", storage->last_commit_s() * 1e3,
              static_cast<double>(snapshot.allocated_bytes) / static_cast<double>(pass_bytes));
  return OkStatus();
}

}  // namespace
}  // namespace luwu::bench

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty()) {
    std::fprintf(stderr,
                 "usage: luwu-storage-bench FOLDER [extents|rocksdb_values] [pass MiB] "
                 "[shard MiB] [rounds]\n");
    return 2;
  }
  const luwu::Status status = luwu::bench::Run(arguments);
  if (!status.ok()) std::fprintf(stderr, "%s\n", luwu::ToString(status).c_str());
  return status.ok() ? 0 : 1;
}
