"""Rota beside other job queues on PostgreSQL and beside a yardstick, on one server in one run: `benchmarks compare`.

peers         who is compared: versions, and where their progress shows
environments  one environment per peer, made once in a cache folder
server        the durable PostgreSQL that all share, with a fresh database each time
processes     peers' processes: started, asked, ended by process id; what CPU they took
measures      what is measured, the same for all
figures       the figures, and their table with ratios
command       the command line, and the order of it all
inside/       what runs in the peers' own environments: each by its own public interface
"""
