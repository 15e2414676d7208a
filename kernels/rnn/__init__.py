"""Vector recurrences by heads: RNN, GRU and LSTM, each a loop and a scan with its own backward."""

from kernels.rnn.scan import gru_scan, lstm_scan, rnn_scan

__all__ = ["gru_scan", "lstm_scan", "rnn_scan"]
