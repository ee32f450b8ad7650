// Runs one kernel on the memory in a file, and writes the memory back: KERNEL BLOCKS THREADS FILE.
// The file has the number of allocations, and for each its size and bytes; then, for each
// parameter, the number of an allocation and an offset, or -1, a size and bytes.

#include <cstring>

static long read_number(FILE *file) {
    long value;
    if (fread(&value, sizeof value, 1, file) != 1) _Exit(5);
    return value;
}

int main(int, char **words) {
    FILE *file = fopen(words[4], "r+b");
    long count = read_number(file), places[64], sizes[64];
    char *memory[64];
    for (long i = 0; i < count; i++) {
        sizes[i] = read_number(file);
        places[i] = ftell(file);
        if (posix_memalign((void **)&memory[i], 256, sizes[i])) _Exit(5);
        if (fread(memory[i], 1, sizes[i], file) != (size_t)sizes[i]) _Exit(5);
    }
    static char values[64][128] __attribute__((aligned(16)));
    void *given[64], *pointers[64];
    long parameters = read_number(file);
    for (long i = 0; i < parameters; i++) {
        long which = read_number(file), number = read_number(file);
        if (which < 0) {
            if (fread(values[i], 1, number, file) != (size_t)number) _Exit(5);
            given[i] = values[i];
        } else {
            pointers[i] = memory[which] + number;
            given[i] = &pointers[i];
        }
    }
    for (Entry *entry = entries; entry->name; entry++) {
        if (strcmp(entry->name, words[1])) continue;
        run_grid(entry->run, given, atoi(words[2]), atoi(words[3]));
        for (long i = 0; i < count; i++) {
            fseek(file, places[i], SEEK_SET);
            fwrite(memory[i], 1, sizes[i], file);
            free(memory[i]);
        }
        return fclose(file);
    }
    return 6;
}
