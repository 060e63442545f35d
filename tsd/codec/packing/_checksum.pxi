# The CRC-32 of packed cells, without the interpreter's lock. Included by _packing.pyx.

cdef extern from *:
    """
    static uint32_t crc_tables[8][256];
    static void make_crc_tables(void) {
        for (int i = 0; i < 256; i++) {
            uint32_t crc = i;
            for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
            crc_tables[0][i] = crc;
        }
        for (int i = 0; i < 256; i++)
            for (int t = 1; t < 8; t++)
                crc_tables[t][i] = crc_tables[t - 1][i] >> 8 ^ crc_tables[0][crc_tables[t - 1][i] & 255];
    }
    static uint32_t crc_of(const uint8_t* at, const uint8_t* end) { /* CRC-32, eight bytes a step */
        uint32_t crc = 0xFFFFFFFFu;
        for (; end - at >= 8; at += 8) {
            uint64_t word;
            memcpy(&word, at, 8);
            word ^= crc;
            crc = crc_tables[7][word & 255] ^ crc_tables[6][word >> 8 & 255] ^ crc_tables[5][word >> 16 & 255]
                ^ crc_tables[4][word >> 24 & 255] ^ crc_tables[3][word >> 32 & 255] ^ crc_tables[2][word >> 40 & 255]
                ^ crc_tables[1][word >> 48 & 255] ^ crc_tables[0][word >> 56];
        }
        for (; at < end; at++) crc = crc >> 8 ^ crc_tables[0][(crc ^ *at) & 255];
        return ~crc;
    }
    """
    void make_crc_tables() nogil
    uint32_t crc_of(const uint8_t* at, const uint8_t* end) nogil

make_crc_tables()
