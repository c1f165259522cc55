#include "server/metrics/metrics_server.h"

#include <array>
#include <exception>
#include <utility>
#include <vector>

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include "server/metrics/metric_list.h"

namespace luwu {
namespace {

prometheus::MetricType TypeOf(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return prometheus::MetricType::Counter;
    case MetricKind::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricKind::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

prometheus::ClientMetric::Histogram HistogramOf(const StepTimes& times) {
  prometheus::ClientMetric::Histogram out;
  out.sample_sum = times.sum_seconds();
  // The library adds the bucket without a bound.
  for (size_t i = 0; i < times.counts().size(); ++i) {
    out.sample_count += times.counts()[i];
    if (i < StepTimes::kBounds.size()) {
      out.bucket.push_back({out.sample_count, StepTimes::kBounds[i]});
    }
  }
  return out;
}

prometheus::MetricFamily FamilyOf(const Metric& metric, const DaemonSnapshot& snapshot) {
  prometheus::MetricFamily family;
  family.name = std::string(metric.name);
  family.help = std::string(metric.help);
  family.type = TypeOf(metric.kind);
  for (const MetricSample& sample : metric.read(snapshot)) {
    prometheus::ClientMetric added;
    for (size_t i = 0; i < metric.labels.size(); ++i) {
      added.label.push_back({std::string(metric.labels[i]), sample.labels[i]});
    }
    added.counter.value = sample.value;
    added.gauge.value = sample.value;
    if (metric.kind == MetricKind::kHistogram) added.histogram = HistogramOf(sample.times);
    family.metric.push_back(std::move(added));
  }
  return family;
}

class SnapshotCollectable final : public prometheus::Collectable {
 public:
  explicit SnapshotCollectable(SnapshotSource source) : source_(std::move(source)) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families;
    const std::shared_ptr<const DaemonSnapshot> snapshot = source_();
    if (snapshot == nullptr) return families;
    for (const Metric& metric : AllMetrics()) {
      prometheus::MetricFamily family = FamilyOf(metric, *snapshot);
      if (!family.metric.empty()) families.push_back(std::move(family));
    }
    return families;
  }

 private:
  const SnapshotSource source_;
};

class ExposerServer final : public MetricsServer {
 public:
  ExposerServer(const std::string& address, SnapshotSource source)
      : collectable_(std::make_shared<SnapshotCollectable>(std::move(source))),
        exposer_(std::vector<std::string>{
            "listening_ports", address, "num_threads", "2", "connection_queue", "8",
            "max_request_size", "8192", "request_timeout_ms", "5000", "enable_keep_alive", "no"}) {
    exposer_.RegisterCollectable(collectable_);
  }

  uint16_t port() const override {
    const std::vector<int> ports = exposer_.GetListeningPorts();
    return ports.empty() ? uint16_t{0} : static_cast<uint16_t>(ports.front());
  }

 private:
  const std::shared_ptr<SnapshotCollectable> collectable_;
  prometheus::Exposer exposer_;
};

}  // namespace

StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                              SnapshotSource source) {
  try {
    return std::unique_ptr<MetricsServer>(
        std::make_unique<ExposerServer>(address, std::move(source)));
  } catch (const std::exception& error) {
    return Error(ErrorCode::kUnavailable,
                 "cannot listen on {} (is it in use?): {}; choose another [metrics] listen",
                 address, error.what());
  }
}

}  // namespace luwu
