// Requests of the control plane as no client of ours sends them: filled by reflection from what is
// known to lead deep into the daemon (names, epochs, sessions) and from the ends of every type, and
// then, half of them, with their bytes damaged.
//
// Not thread-safe. The same seed gives the same requests.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>

#include <google/protobuf/message.h>

namespace luwu {

// What a request must say to get anywhere.
struct KnownFacts {
  std::string job;
  std::string sandbox;  // an absolute folder; no path outside it is ever sent
  uint64_t epoch = 0;
  uint64_t session_id = 0;
  uint64_t nodes_fingerprint = 0;
};

class RequestMutator {
 public:
  explicit RequestMutator(uint64_t seed) : random_(seed) {}

  void set_facts(const KnownFacts& facts) { facts_ = facts; }
  // A valid request, from which later ones of its type may be made.
  void SetValid(const google::protobuf::Message& request);

  // The bytes of a request of this type.
  std::string Next(const google::protobuf::Descriptor& type);

 private:
  using Field = google::protobuf::FieldDescriptor;

  uint64_t Below(uint64_t bound) { return random_() % bound; }
  bool Chance(uint32_t percent) { return Below(100) < percent; }
  uint64_t Number(const Field& field);
  std::string Text(const Field& field);
  void Fill(google::protobuf::Message* message, int depth);
  void FillField(google::protobuf::Message* message, const Field& field, int depth);
  void SetScalar(google::protobuf::Message* message, const Field& field);
  std::string Damage(std::string bytes);
  bool StaysInSandbox(const google::protobuf::Message& message) const;

  std::mt19937_64 random_;
  KnownFacts facts_;
  std::map<std::string, std::string> valid_;  // by type
};

}  // namespace luwu
