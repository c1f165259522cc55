#include "common/base/exact_sum.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace luwu {
namespace {

// Bit by bit, as on paper: a number is the list of its binary digits, digit i of weight 2^(i-298).
class Digits {
 public:
  Digits() : digits_(700) {}
  void Add(double value) {
    for (int i = 699; i >= 0; --i) {
      const double weight = std::ldexp(1.0, i - 298);
      if (value < weight) continue;
      value -= weight;
      Increment(static_cast<size_t>(i));
    }
    EXPECT_EQ(value, 0.0);
  }
  // The largest double not above it, or the next one when that is nearer (or even, on a tie).
  double Nearest() const {
    int top = 699;
    while (top >= 0 && !digits_[top]) --top;
    if (top < 0) return 0;
    double value = 0;
    int i = top;
    bool last = false;
    for (; i >= 0 && i > top - 53; --i) {
      last = digits_[i];
      if (last) value += std::ldexp(1.0, i - 298);
    }
    if (i < 0 || !digits_[i]) return value;
    const bool below = std::any_of(digits_.begin(), digits_.begin() + i, [](bool d) { return d; });
    if (!below && !last) return value;
    return std::nextafter(value, std::numeric_limits<double>::infinity());
  }

 private:
  void Increment(size_t i) {
    for (; digits_[i]; ++i) digits_[i] = false;
    digits_[i] = true;
  }
  std::vector<bool> digits_;
};

double RandomSquare(std::mt19937_64& random) {
  const int exponent = static_cast<int>(random() % 276) - 149;
  const auto value =
      static_cast<float>(std::ldexp(1.0 + double(random() % (1 << 23)) / (1 << 23), exponent));
  return double(value) * double(value);
}

TEST(ExactSum, IsTheNearestDoubleOfTheSumOnPaper) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    ExactSum sum;
    Digits digits;
    const int terms = 1 + static_cast<int>(random() % 30);
    // Near each other in size at times, so that carries and ties happen.
    const bool near = round % 3 == 0;
    for (int i = 0; i < terms; ++i) {
      const double value = near ? std::ldexp(double(random() % 16), static_cast<int>(random() % 60))
                                : RandomSquare(random);
      sum.Add(value);
      digits.Add(value);
    }
    ASSERT_EQ(sum.ToDouble(), digits.Nearest()) << "round " << round;
  }
}

TEST(ExactSum, RoundsTiesToEvenOnceAndLooksAtEveryBitBelow) {
  const double unit = std::ldexp(1.0, -53);
  const auto total = [](std::vector<double> terms) {
    ExactSum sum;
    for (const double term : terms) sum.Add(term);
    return sum.ToDouble();
  };
  EXPECT_EQ(total({1, unit}), 1.0);
  EXPECT_EQ(total({1, unit, std::ldexp(1.0, -298)}), 1 + 2 * unit);
  EXPECT_EQ(total({1, 2 * unit, unit}), 1 + 4 * unit);
  EXPECT_EQ(total({std::ldexp(1.0, 60), std::ldexp(1.0, 7)}), std::ldexp(1.0, 60));
  EXPECT_EQ(total({2 - 2 * unit, unit}), 2.0) << "a carry into a new binary digit";
  EXPECT_EQ(total({}), 0.0);
}

TEST(ExactSum, TheExtremesFit) {
  const double tiny = std::numeric_limits<float>::denorm_min();
  const double huge = std::numeric_limits<float>::max();
  ExactSum sum;
  sum.Add(tiny * tiny);
  EXPECT_EQ(sum.ToDouble(), std::ldexp(1.0, -298));
  const double many = std::ldexp(huge * huge, 44);  // a whole job of them in one addend
  sum.Add(many);
  EXPECT_EQ(sum.ToDouble(), many);
  EXPECT_EQ(sum.Serialize().size(), 1 + 10 * sizeof(uint64_t));
}

TEST(ExactSum, OrderAndGroupingMakeNoDifference) {
  std::mt19937_64 random(2);
  std::vector<double> values(200);
  for (double& value : values) value = RandomSquare(random);
  ExactSum straight;
  for (const double value : values) straight.Add(value);
  for (int round = 0; round < 50; ++round) {
    std::shuffle(values.begin(), values.end(), random);
    std::vector<ExactSum> nodes(1 + random() % 7);
    for (const double value : values) nodes[random() % nodes.size()].Add(value);
    ExactSum total;
    for (const ExactSum& node : nodes) total.Merge(node);
    EXPECT_EQ(total, straight);
    EXPECT_EQ(total.ToDouble(), straight.ToDouble());
  }
}

TEST(ExactSum, CarriesRunThroughAllWords) {
  ExactSum sum;
  Digits digits;
  for (int i = -298; i < 301; i += 1) {
    sum.Add(std::ldexp(1.0, i));
    digits.Add(std::ldexp(1.0, i));
  }
  EXPECT_EQ(sum.ToDouble(), std::ldexp(1.0, 301));
  ExactSum other = sum;
  sum.Add(std::ldexp(1.0, -298));
  EXPECT_EQ(sum.Serialize().size(), 9u) << "a single digit is left";
  ExactSum one;
  one.Add(std::ldexp(1.0, -298));
  other.Merge(one);
  EXPECT_EQ(other, sum);
}

TEST(ExactSum, SurvivesSerialization) {
  std::mt19937_64 random(3);
  EXPECT_EQ(ExactSum().Serialize(), "");
  EXPECT_TRUE(ExactSum::Parse("")->IsZero());
  for (int round = 0; round < 200; ++round) {
    ExactSum sum;
    for (uint64_t i = 0; i <= random() % 4; ++i) sum.Add(RandomSquare(random));
    const StatusOr<ExactSum> parsed = ExactSum::Parse(sum.Serialize());
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, sum);
  }
}

TEST(ExactSum, RefusesBytesThatAreNoSum) {
  const std::string word(8, '\1');
  const std::string zero(8, '\0');
  for (const std::string& bytes :
       {std::string("\1"), std::string("\1\1\1"), std::string("\12") + word,
        std::string("\11") + word + word, std::string("\1") + zero, std::string("\1") + word + zero,
        std::string("\1") + zero + word, std::string("\1") + word + "x",
        std::string("\377") + word}) {
    EXPECT_EQ(CodeOf(ExactSum::Parse(bytes).status()), ErrorCode::kInvalidArgument) << bytes.size();
  }
  EXPECT_TRUE(ExactSum::Parse(std::string("\11") + word).ok());
}

TEST(ExactSumDeathTest, RefusesWhatIsNoSumOfSquares) {
  const double bad[] = {std::nan(""), std::numeric_limits<double>::infinity(), -1.0,
                        std::ldexp(1.0, -299), std::ldexp(1.0, 302)};
  for (const double value : bad) {
    ExactSum sum;
    EXPECT_DEATH(sum.Add(value), "2.-298|squares") << value;
  }
}

}  // namespace
}  // namespace luwu
