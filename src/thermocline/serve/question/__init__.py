"""What was asked: guarded, understood, and said in the words of other engines."""
