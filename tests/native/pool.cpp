// The memory of results without Python: threads that allocate, exchange and free blocks, with no lock of an interpreter
// to keep them apart. If something is wrong, prints it and exits with status 1.
//   c++ -std=c++17 -O2 -pthread -I cpu tests/native/pool.cpp cpu/pool.cpp cpu/available.cpp -o pool
// The argument is the number of blocks that a thread allocates, or a word: "forks" also forks children,
// "plant-reuse" and "plant-overrun" make mistakes that a sanitizer must see.
#include "pool.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

using namespace pg;

namespace {

constexpr size_t SIZES[] = {0, 8, 100, 4096, 16u << 10, 40000, 100000, 200000, 1u << 20, 5u << 20, 33u << 20};
constexpr size_t MOST_KEPT = 80u << 20;  // more than is kept without a look at the free memory

std::atomic<bool> wrong{false}, forking{false};

void expect(bool right, const char *what, size_t bytes) {
    if (right) return;
    std::printf("wrong: %s, %zu bytes\n", what, bytes);
    wrong = true;
}

struct Block {
    unsigned char *bytes = nullptr;
    size_t size = 0;
    unsigned char mark = 0;
};

Block allocated(std::mt19937 &source) {
    Block made;
    made.size = SIZES[source() % (sizeof SIZES / sizeof *SIZES)];
    made.mark = (unsigned char)(source() % 255 + 1);
    const bool zeros = source() % 2;
    made.bytes = static_cast<unsigned char *>(zeros ? pool_allocate_zeros(made.size) : pool_allocate(made.size));
    expect(made.bytes, "no memory", made.size);
    expect((uintptr_t)made.bytes % 64 == 0, "not aligned", made.size);
    if (!made.size) return made;
    const size_t last = made.size - 1;
    if (zeros) expect(!made.bytes[0] && !made.bytes[last / 2] && !made.bytes[last], "not zero", made.size);
    made.bytes[0] = made.bytes[last] = made.mark;
    return made;
}

void release(Block &block, std::mt19937 &source) {
    const auto intact = [&](size_t size) {
        if (size) expect(block.bytes[0] == block.mark, "changed", size);
    };
    intact(block.size);
    if (block.size) expect(block.bytes[block.size - 1] == block.mark, "changed at its end", block.size);
    if (block.bytes && source() % 4 == 0) {
        const size_t size = block.size + source() % 1000;
        block.bytes = static_cast<unsigned char *>(pool_reallocate(block.bytes, size));
        intact(block.size);
    }
    pool_free(block.bytes);
    block = {};
}

std::mutex exchange;
Block left[8];  // left there for any thread to take

void work(unsigned seed, int turns) {
    std::mt19937 source(seed);
    Block own[8];
    for (int i = 0; i < turns || forking; ++i) {
        Block &block = own[source() % 8];
        release(block, source);
        block = allocated(source);
        std::lock_guard<std::mutex> lock(exchange);
        std::swap(block, left[source() % 8]);
    }
    for (Block &block : own) release(block, source);
}

void work_in_child(unsigned seed) {
    const pid_t child = fork();
    if (child == 0) {
        alarm(30);  // ends a child that waits for a lock which nobody will release
        std::mt19937 source(seed);
        for (int i = 0; i < 30; ++i) {
            Block block = allocated(source);
            release(block, source);
        }
        _exit(wrong);
    }
    int status = 1;
    waitpid(child, &status, 0);
    expect(status == 0, "a child", (size_t)status);
}

}  // namespace

int main(int count, char **words) {
    const char *word = count > 1 ? words[1] : "";
    if (!std::strcmp(word, "plant-reuse")) {
        auto *block = static_cast<volatile char *>(pool_allocate(1 << 20));
        pool_free(const_cast<char *>(block));
        return block[1000];
    }
    if (!std::strcmp(word, "plant-overrun")) return static_cast<volatile char *>(pool_allocate_zeros(33000))[33000];
    const int turns = std::atoi(word) ? std::atoi(word) : 2000;
    forking = !std::strcmp(word, "forks");
    pool_set_bounds(MOST_KEPT, std::chrono::milliseconds(20));
    std::vector<std::thread> threads;
    std::atomic<bool> done{false};
    std::thread trims([&done] {
        for (int i = 0; !done; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            i % 50 ? pool_trim() : pool_release();
            expect(pool_kept() <= MOST_KEPT, "kept meanwhile", pool_kept());
        }
    });
    for (unsigned seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed, turns);
    if (forking)
        for (unsigned seed = 0; seed < 50; ++seed) work_in_child(seed);
    forking = false;
    for (std::thread &thread : threads) thread.join();
    done = true;
    trims.join();
    std::mt19937 source(1);
    for (Block &block : left) release(block, source);
    pool_free(pool_allocate(1 << 20));
    expect(pool_kept() >= 1 << 20 && pool_kept() <= MOST_KEPT, "kept", pool_kept());
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    pool_trim();
    expect(!pool_kept(), "kept for too long", pool_kept());
    expect(!pool_reuse(1 << 20), "used again", 1 << 20);
    pool_free(pool_allocate(1 << 20));
    expect(pool_kept() == 1 << 20, "kept of one block", pool_kept());
    pool_release();
    expect(!pool_kept(), "kept after all", pool_kept());
    if (!wrong) std::printf("blocks of %zu sizes from 4 threads\n", sizeof SIZES / sizeof *SIZES);
    return wrong;
}
