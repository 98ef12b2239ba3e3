
define internal void @kernel.body(ptr noalias %g0, ptr noalias readonly %g1, i64 %lo, i64 %hi, ptr noalias %scratch) #0 {
entry:
  br label %loop1
loop1:
  %x1 = phi i64 [ 0, %entry ], [ %x1.next, %done4 ]
  %x2 = shl i64 %x1, 6
  %x3 = getelementptr float, ptr %g1, i64 %x2
  br label %loop3
loop3:
  %x4 = phi i64 [ 0, %loop1 ], [ %x4.next, %loop3 ]
  %x5 = phi ptr [ %x3, %loop1 ], [ %x5.next, %loop3 ]
  %x6 = phi <4 x float> [ zeroinitializer, %loop1 ], [ %x9, %loop3 ]
  %x7 = phi <4 x float> [ zeroinitializer, %loop1 ], [ %x12, %loop3 ]
  %x8 = load <4 x float>, ptr %x5, align 4
  %x9 = fadd <4 x float> %x6, %x8
  %x10 = getelementptr float, ptr %x5, i64 4
  %x11 = load <4 x float>, ptr %x10, align 4
  %x12 = fadd <4 x float> %x7, %x11
  %x5.next = getelementptr float, ptr %x5, i64 8
  %x4.next = add nuw nsw i64 %x4, 1
  %x13 = icmp slt i64 %x4.next, 8
  br i1 %x13, label %loop3, label %done4
done4:
  %x14 = fadd <4 x float> %x9, %x12
  %x15 = shufflevector <4 x float> %x14, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %x16 = shufflevector <4 x float> %x14, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %x17 = fadd <2 x float> %x15, %x16
  %x18 = extractelement <2 x float> %x17, i32 0
  %x19 = extractelement <2 x float> %x17, i32 1
  %x20 = fadd float %x18, %x19
  %x21 = getelementptr float, ptr %g0, i64 %x1
  store float %x20, ptr %x21, align 4
  %x1.next = add nuw nsw i64 %x1, 1
  %x22 = icmp slt i64 %x1.next, 4
  br i1 %x22, label %loop1, label %done2
done2:
  ret void
}

define void @kernel(ptr %args, i64 %lo, i64 %hi, ptr %scratch) #0 {
entry:
  %p0 = getelementptr ptr, ptr %args, i64 0
  %g0 = load ptr, ptr %p0, align 8
  %p1 = getelementptr ptr, ptr %args, i64 1
  %g1 = load ptr, ptr %p1, align 8
  call void @kernel.body(ptr %g0, ptr %g1, i64 %lo, i64 %hi, ptr %scratch)
  ret void
}

define i64 @kernel.extent(ptr %args) #2 {
entry:
  ret i64 1
}

attributes #0 = { nounwind }
attributes #2 = { nounwind noinline optnone }
